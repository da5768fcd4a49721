// The trainer that pushes for all trainers of its host is killed and stopped. Its seats are empty
// then, and another rank takes over.

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/status.pb.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::EndsWith;

constexpr int kRanks = 3;               // t0, which is the pusher, t1 and t2
constexpr int64_t kElements = 200'000;  // as in pushing_rank_main

// Timeouts of the ranks' calls. A killed rank is noticed without them, and a stopped pusher after
// six times the timeout.
constexpr char kLong[] = "60s", kShort[] = "4s";

// Every rank subtracts 1 from the parameter in each round in which it takes part.
class PusherFaultsTest : public ::testing::Test {
 protected:
  PusherFaultsTest() : owner_({"owner0", "127.0.0.1:0", "", /*lease=*/absl::Seconds(3)}) {
    observer_ = Must(Worker::Start(TrainerOptions("observer", {owner_.address()})));
  }

  // Starts the ranks and lets them take steps. A full round has gradients of `trainers` trainers.
  // The first `mortal` ranks kill or stop themselves at `stage` when they push.
  void Start(int trainers, const std::string& timeout, int mortal = 0,
             const std::string& stage = "") {
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<std::string> command = {
          "tests/crash/pushing_rank_main",
          absl::StrCat("t", rank),
          absl::StrCat(owner_.address().name, "=", owner_.address().address),
          "t0,t1,t2",
          absl::StrCat(trainers),
          timeout};
      if (rank < mortal) command.push_back(stage);
      ranks_.push_back(std::make_unique<Process>(command));
    }
    for (const auto& rank : ranks_) EXPECT_EQ(rank->WaitForLine("joined "), "3");
    LetBegin({"t0", "t1", "t2"});
  }
  void LetBegin(std::vector<std::string> ranks) {
    ranks.push_back("observer");
    EXPECT_TRUE(observer_->Barrier("begin", ranks).ok());
  }

  // Returns what the ranks after `pusher` say about the step in which they lost it. They have built
  // their group without it.
  std::vector<std::string> FatesTold(int pusher) {
    std::vector<std::string> fates;
    for (int rank = pusher + 1; rank < kRanks; ++rank) {
      EXPECT_THAT(ranks_[rank]->WaitForLine("error "), EndsWith(absl::StrCat(" t", pusher)));
      fates.push_back(ranks_[rank]->WaitForLine("fate "));
      EXPECT_EQ(ranks_[rank]->WaitForLine("joined "), absl::StrCat(kRanks - 1 - pusher));
    }
    return fates;
  }
  // The ranks from `first` on say that `element` is the result of their step.
  void ExpectStep(int first, int step, double element) {
    for (int rank = first; rank < kRanks; ++rank) {
      EXPECT_EQ(ranks_[rank]->WaitForLine(absl::StrCat("step ", step, " ")), absl::StrCat(element))
          << "t" << rank;
    }
  }

  // The pusher goes on, and learns that it is lost. The steps of the others are the only ones that
  // have changed the parameter since it had the element `before`.
  void ExpectNoChangeByStoppedPusher(double before) {
    ranks_[0]->Continue();
    EXPECT_EQ(ranks_[0]->WaitForLine("lost "), "t0");
    const int later = static_cast<int>(Optimizer().steps());
    ExpectStep(1, later, before - 2 * later);
  }

  v1::OptimizerState Optimizer() {
    const v1::WorkerStatus status = Must(StatusOf(*observer_, "owner0"));
    return status.optimizers_size() == 0 ? v1::OptimizerState() : status.optimizers(0);
  }

  Daemon owner_;
  std::unique_ptr<Worker> observer_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

// ---------------------------------------------------------------- killed at each stage

struct Stage {
  std::string name;
  std::string fate = "unknown";  // what at least one of the others says
  bool applied = false;
};
std::ostream& operator<<(std::ostream& out, const Stage& stage) {
  return out << stage.name;
}

class PusherStageTest : public PusherFaultsTest, public ::testing::WithParamInterface<Stage> {};

INSTANTIATE_TEST_SUITE_P(Stages, PusherStageTest,
                         ::testing::Values(Stage{"agreement", "known"},
                                           Stage{"further-agreement", "known"}, Stage{"sum"},
                                           Stage{"further-sum"}, Stage{"push"}, Stage{"step"},
                                           Stage{"outcome", "unknown", true},
                                           Stage{"further-outcome", "unknown", true}),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param.name, {{"-", "_"}});
                         });

TEST_P(PusherStageTest, DDP_32_AnotherRankTakesOverAndEveryGradientCountsAtMostOnce) {
  Start(kRanks, kLong, /*mortal=*/1, GetParam().name);
  ExpectStep(0, 2, -6);
  EXPECT_THAT(FatesTold(0), Contains(GetParam().fate));
  LetBegin({"t1", "t2"});
  const double before = GetParam().applied ? -9 : -6;
  for (const int step : {1, 2, 3}) ExpectStep(1, step, before - 2 * step);
}

TEST_F(PusherFaultsTest, DDP_32_IfTheSuccessorDiesTooTheLastRankTakesOver) {
  Start(kRanks, kLong, /*mortal=*/2, "step");
  FatesTold(0);
  LetBegin({"t1", "t2"});
  ExpectStep(1, 2, -6 - 2 * 2);
  FatesTold(1);
  LetBegin({"t2"});
  ExpectStep(2, 2, -6 - 2 * 2 - 2);
}

// ---------------------------------------------------------------- stopped at a stage

class StoppedPusherTest : public PusherFaultsTest,
                          public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Stages, StoppedPusherTest, ::testing::Values("push", "step"),
                         [](const auto& info) { return info.param; });

// When it comes back, it sends what the others believe to be lost.
TEST_P(StoppedPusherTest, DDP_30_DDP_32_WhatItSendsWhenItComesBackIsRefused) {
  Start(kRanks, kShort, /*mortal=*/1, absl::StrCat("stop-", GetParam()));
  ranks_[0]->AwaitStop();
  EXPECT_THAT(FatesTold(0), Each("unknown"));
  LetBegin({"t1", "t2"});
  ExpectStep(1, 1, -6 - 2);
  ExpectNoChangeByStoppedPusher(-6);
}

// ---------------------------------------------------------------- while its step waits

class WaitingPusherTest : public PusherFaultsTest {
 protected:
  // The observer is a trainer of another host, which steps when the test says so. Returns when the
  // pusher's second step waits for it.
  void StartWithOtherHost(const std::string& timeout) {
    OptimizerSettings settings;
    settings.mode = UpdateMode::Synchronous(kRanks + 1, UpdateMode::Reduction::kSum);
    training_.emplace(Must(Training::Create(*observer_, {"owner0"}, kElements, {}, settings)));
    Start(kRanks + 1, timeout);
    EXPECT_EQ(StepOfOtherHost(), kRanks + 1);
    ExpectStep(0, 1, -4);
    AwaitWaitingStep();
  }
  // Returns the number of trainers in the round, this one included.
  int StepOfOtherHost() {
    EXPECT_TRUE(training_->Pull().ok());
    EXPECT_TRUE(training_->Backward().ok());
    const StepOutcome outcome = training_->Step();
    EXPECT_TRUE(outcome.status().ok()) << outcome.status();
    return outcome.owners.empty() ? 0 : outcome.owners[0].trainers;
  }
  void AwaitWaitingStep() {
    EXPECT_TRUE(Eventually([&] { return Optimizer().waiting() == 1; }));
  }

  // The pusher does not answer any more, and its step is not applied.
  void ExpectSeatsEmpty() {
    EXPECT_THAT(FatesTold(0), Each("unknown"));
    EXPECT_TRUE(Eventually([&] { return Optimizer().members() == 1; })) << "the other host";
    EXPECT_EQ(Optimizer().waiting(), 0);
    EXPECT_EQ(StepOfOtherHost(), 1);
  }

  std::optional<Training> training_;
};

TEST_F(WaitingPusherTest, DDP_32_TheSeatsOfAKilledPusherAreEmptyUntilAnotherTakesOver) {
  StartWithOtherHost(kLong);
  ranks_[0]->Kill();
  ExpectSeatsEmpty();
  LetBegin({"t1", "t2"});
  AwaitWaitingStep();
  EXPECT_EQ(StepOfOtherHost(), 3);
  ExpectStep(1, 1, -4 - 1 - 3);
  for (const size_t rank : {1, 2}) ranks_[rank]->Kill();
  EXPECT_TRUE(Eventually([&] { return Optimizer().members() == 1; }));
  EXPECT_EQ(StepOfOtherHost(), 1) << "nobody is left on the other host";
}

TEST_F(WaitingPusherTest, DDP_30_DDP_32_AStoppedPusherChangesNothingWhenItComesBack) {
  StartWithOtherHost(kShort);
  ranks_[0]->Stop();
  ExpectSeatsEmpty();
  training_.reset();  // the ranks go on without the other host
  LetBegin({"t1", "t2"});
  ExpectStep(1, 1, -5 - 2);
  ExpectNoChangeByStoppedPusher(-5);
}

}  // namespace
}  // namespace psd::crash
