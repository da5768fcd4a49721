// Owners die, restart or stop while trainers use them.

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kLarge = 1 << 20;  // elements; an exchange takes long enough to be interrupted
constexpr int64_t kSmall = 4;

// owner0 is the registrar and survives. owner1 is the victim of the faults.
class OwnerFaultsTest : public ::testing::Test {
 protected:
  explicit OwnerFaultsTest(absl::Duration victim_lease = absl::Seconds(10))
      : victim_({"owner1", "127.0.0.1:0", survivor_.AsRegistrar(), victim_lease}) {}

  std::unique_ptr<Worker> NewTrainer(const std::string& name) {
    return Must(Worker::Start(TrainerOptions(name, {survivor_.address(), victim_.address()})));
  }
  static size_t PendingOn(Worker& trainer, const std::string& owner) {
    for (const rpc::PeerStatus& peer : RuntimeOf(trainer).agent().Peers()) {
      if (peer.peer.name == owner) return peer.calls_pending;
    }
    return 0;
  }
  // Runs `call` while the victim is stopped, and kills the victim once a call to it is pending.
  void KillWhileAsked(Worker& trainer, const std::function<void()>& call) {
    victim_.process().Stop();
    std::thread caller(call);
    EXPECT_TRUE(Eventually([&] { return PendingOn(trainer, "owner1") > 0; }));
    victim_.process().Kill();
    caller.join();
  }
  // Checks that the surviving owner still works, and that its parameter has every step that it
  // accepted exactly once.
  void ExpectSurvivorServes() {
    auto trainer = Must(Worker::Start(TrainerOptions("afterwards", {survivor_.address()})));
    const v1::WorkerStatus status = Must(StatusOf(*trainer, "owner0"));
    RRef w = Must(trainer->Lookup("owner0", "w"));
    const std::vector<float> elements = Read(*trainer, w);
    EXPECT_THAT(elements, Each(-static_cast<float>(StepsOf(status, kOptimizer))));
    EXPECT_TRUE(trainer->Assign(w, Tensor::Of<float>({kSmall}, {1, 2, 3, 4})).ok() ||
                elements.size() != kSmall);
  }

  // Empties the surviving owner, so that the next trainers begin with two empty owners.
  void DropWhatIsLeft() {
    auto trainer = Must(Worker::Start(TrainerOptions("tidying", {survivor_.address()})));
    EXPECT_TRUE(trainer->Drop("owner0", "w").ok());
    EXPECT_TRUE(trainer->Drop("owner0", kOptimizer).ok());
  }

  Daemon survivor_;
  Daemon victim_;
};

void ExpectNamesTheDead(const absl::Status& status) {
  EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kAborted))
      << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("owner1"));
  EXPECT_TRUE(GetDetail(status).has_value() && GetDetail(status)->worker == "owner1") << status;
}

// ---------------------------------------------------------------- killed during a call

TEST_F(OwnerFaultsTest, KilledDuringAPull) {
  auto trainer = NewTrainer("trainer0");
  Training training = Must(Training::Create(*trainer, {"owner1", "owner0"}, kSmall));
  absl::Status pulled;
  KillWhileAsked(*trainer, [&] { pulled = training.Pull(); });
  ExpectNamesTheDead(pulled);
  EXPECT_FALSE(GetDetail(pulled)->fate_unknown) << "a pull changes nothing";
  ExpectSurvivorServes();
}

TEST_F(OwnerFaultsTest, KilledDuringBackward) {
  auto trainer = NewTrainer("trainer0");
  Training training = Must(Training::Create(*trainer, {"owner1", "owner0"}, kSmall));
  ASSERT_TRUE(training.Pull().ok());
  absl::Status done;
  KillWhileAsked(*trainer, [&] { done = training.Backward(); });
  ExpectNamesTheDead(done);
  ExpectSurvivorServes();
}

TEST_F(OwnerFaultsTest, KilledDuringAStepThatTheOtherOwnerApplies) {
  auto trainer = NewTrainer("trainer0");
  Training training = Must(Training::Create(*trainer, {"owner1", "owner0"}, kSmall));
  ASSERT_TRUE(training.Pull().ok());
  ASSERT_TRUE(training.Backward().ok());
  StepOutcome outcome;
  KillWhileAsked(*trainer, [&] { outcome = training.Step(); });
  ASSERT_EQ(outcome.owners.size(), 2u);
  EXPECT_EQ(outcome.owners[0].owner, "owner1");
  ExpectNamesTheDead(outcome.owners[0].status);
  EXPECT_TRUE(outcome.owners[0].fate_unknown) << "it was sent, and nobody can say";
  EXPECT_EQ(outcome.owners[1].owner, "owner0");
  EXPECT_TRUE(outcome.owners[1].status.ok()) << outcome.owners[1].status;
  EXPECT_EQ(outcome.owners[1].steps_accepted, 1u);
  const absl::Status whole = outcome.status();
  EXPECT_THAT(std::string(whole.message()), HasSubstr("owner1"));
  EXPECT_THAT(std::string(whole.message()), HasSubstr("it was applied on owner0"));
  EXPECT_THAT(std::string(whole.message()), Not(HasSubstr("error_detail"))) << "made for people";
  ExpectSurvivorServes();
}

// ---------------------------------------------------------------- killed at any moment

// A trainer that trains until a call fails. It records its current phase and the error.
struct Caller {
  std::unique_ptr<Worker> worker;
  std::atomic<int> phase{-1};
  absl::Status error;
  StepOutcome outcome;  // if a step failed
  std::thread thread;

  void Begin(Phase next) { phase = static_cast<int>(next); }
  void Run() {
    auto training = Training::Create(*worker, {"owner0", "owner1"}, kLarge);
    for (error = training.status(); error.ok();) {
      Begin(Phase::kPull);
      error = training->Pull();
      if (error.ok()) Begin(Phase::kBackward);
      if (error.ok()) error = training->Backward();
      if (!error.ok()) return;
      Begin(Phase::kStep);
      outcome = training->Step();
      error = outcome.status();
    }
  }
};

class KilledAtAnyMoment : public OwnerFaultsTest, public ::testing::WithParamInterface<Phase> {};

TEST_P(KilledAtAnyMoment, EveryCallerHearsOfItAndTheOtherOwnerServesOn) {
  std::mt19937 random(static_cast<unsigned>(GetParam()) + 1);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<Caller>> callers;
    for (int i = 0; i < 3; ++i) {
      callers.push_back(std::make_unique<Caller>());
      Caller& caller = *callers.back();
      caller.worker = NewTrainer(absl::StrCat("trainer", i));
      caller.thread = std::thread([&caller] { caller.Run(); });
    }
    EXPECT_TRUE(Eventually([&] { return callers[0]->phase == static_cast<int>(GetParam()); }));
    absl::SleepFor(absl::Microseconds(random() % 5000));  // until a random moment
    victim_.process().Kill();
    for (const auto& caller : callers) {
      caller->thread.join();
      if (caller->outcome.owners.size() != 2) {
        ExpectNamesTheDead(caller->error);
      } else if (!caller->outcome.status().ok()) {
        EXPECT_TRUE(caller->outcome.owners[0].status.ok()) << caller->outcome.owners[0].status;
        ExpectNamesTheDead(caller->outcome.owners[1].status);
      }
    }
    callers.clear();
    ExpectSurvivorServes();
    DropWhatIsLeft();
    victim_.Restart();
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, KilledAtAnyMoment,
                         ::testing::Values(Phase::kPull, Phase::kBackward, Phase::kStep),
                         [](const auto& info) { return PhaseName(info.param); });

// ---------------------------------------------------------------- restarted

TEST_F(OwnerFaultsTest, RestartedItRefusesWhatWasOfItsFormerLifeAndServesAnew) {
  auto trainer = NewTrainer("trainer0");
  Training training = Must(Training::Create(*trainer, {"owner0", "owner1"}, kSmall));
  ASSERT_TRUE(training.Pull().ok());
  ASSERT_TRUE(training.Backward().ok());
  const Incarnation before = Must(StatusOf(*trainer, "owner1")).incarnation();
  victim_.Restart();
  const Incarnation after = Must(StatusOf(*NewTrainer("observer"), "owner1")).incarnation();
  ASSERT_NE(before, after);

  const absl::Status refused = trainer->ToHere({training.parameters()[1]}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAborted) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("owner1"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(IncarnationToString(before)));
  EXPECT_THAT(std::string(refused.message()), HasSubstr(IncarnationToString(after)));
  EXPECT_EQ(trainer->Lookup("owner1", "w").status().code(), absl::StatusCode::kNotFound);

  // Half a model is neither stepped nor created again, except by start_afresh.
  const absl::Status created = Training::Create(*trainer, {"owner0", "owner1"}, kSmall).status();
  for (const absl::Status& half : {training.Step().refused, created}) {
    EXPECT_EQ(half.code(), absl::StatusCode::kFailedPrecondition) << half;
    EXPECT_THAT(std::string(half.message()), HasSubstr("owner1 was restarted"));
  }
  JoinOptions afresh;
  afresh.start_afresh = true;
  Training anew = Must(Training::Create(*trainer, {"owner0", "owner1"}, kSmall, afresh));
  ASSERT_TRUE(anew.Pull().ok());
  ASSERT_TRUE(anew.Backward().ok());
  EXPECT_TRUE(anew.Step().status().ok());
  EXPECT_THAT(Read(*trainer, anew.parameters()[0]), Each(-1));
  EXPECT_THAT(Read(*trainer, anew.parameters()[1]), Each(-1));
}

// ---------------------------------------------------------------- stopped

class StoppedOwnerTest : public OwnerFaultsTest {
 protected:
  StoppedOwnerTest() : OwnerFaultsTest(/*victim_lease=*/absl::Seconds(1)) {}
};

TEST_F(StoppedOwnerTest, ContinuedItAnswersWhatWasAskedAndHasForgottenNobody) {
  auto trainer = NewTrainer("trainer0");
  Training training = Must(Training::Create(*trainer, {"owner0", "owner1"}, kSmall));
  RRef anonymous = Must(trainer->Remote("owner1", Function::Operator("neg", 1),
                                        {Variable(Tensor::Of<float>({1}, {5}))}));
  ASSERT_TRUE(trainer->ToHere({anonymous}).ok());
  ASSERT_TRUE(training.Pull().ok());
  ASSERT_TRUE(training.Backward().ok());

  victim_.process().Stop();
  const absl::Time stopped = absl::Now();
  StepOutcome outcome;
  std::thread stepping([&] { outcome = training.Step(); });
  // The stop is longer than the lease, which the stopped owner cannot renew.
  EXPECT_TRUE(Eventually([&] { return absl::Now() - stopped > absl::Milliseconds(2500); }));
  victim_.process().Continue();
  stepping.join();
  EXPECT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_THAT(Read(*trainer, training.parameters()[1]), Each(-1));
  EXPECT_THAT(Read(*trainer, anonymous), Each(-5));
}

}  // namespace
}  // namespace psd::crash
