// Trainers die, stop or come back under the same name.

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

namespace psd::crash {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr int64_t kElements = 1 << 20;  // as in trainer_main

class TrainerFaultsTest : public ::testing::Test {
 protected:
  explicit TrainerFaultsTest(absl::Duration lease = absl::Seconds(2))
      : owner_({"owner0", "127.0.0.1:0", "", lease}) {
    observer_ = Must(Worker::Start(TrainerOptions("observer", {owner_.address()})));
    training_.emplace(Must(Training::Create(*observer_, {"owner0"}, kElements)));
    EXPECT_TRUE(StepOnce().ok());
    training_->Forget();
    EXPECT_TRUE(Eventually([&] { return Held().contexts == 0; }));
    initially_ = Held();
  }

  absl::Status StepOnce() {
    PSD_RETURN_IF_ERROR(training_->Pull());
    PSD_RETURN_IF_ERROR(training_->Backward());
    return training_->Step().status();
  }
  std::unique_ptr<Process> StartVictim(const std::string& mode) {
    return StartTrainerProcess("victim", mode, {owner_.address()});
  }
  v1::WorkerStatus Status() { return Must(StatusOf(*observer_, "owner0")); }
  Holdings Held() { return HoldingsOf(Status()); }
  uint64_t Steps() { return StepsOf(Status(), kOptimizer); }
  uint64_t EpochOfVictim() {
    const v1::WorkerStatus status = Status();
    const v1::PeerState* peer = PeerOf(status, "victim");
    return peer == nullptr ? 0 : peer->epoch_here();
  }
  bool VictimIsConnected() {
    const v1::WorkerStatus status = Status();
    const v1::PeerState* peer = PeerOf(status, "victim");
    return peer != nullptr && peer->connected();
  }
  // Checks that the owner holds nothing except for the observer, and that the model has every step
  // that was accepted.
  void ExpectAsInitially() {
    EXPECT_TRUE(Eventually([&] { return Held() == initially_; }))
        << Held() << "\ninitially " << initially_;
    const uint64_t steps = Steps();
    EXPECT_THAT(Read(*observer_, training_->parameters()[0]), Each(-static_cast<float>(steps)));
    EXPECT_TRUE(StepOnce().ok()) << "the owner serves on";
    training_->Forget();
  }

  Daemon owner_;
  std::unique_ptr<Worker> observer_;
  std::optional<Training> training_;
  Holdings initially_;
};

// ---------------------------------------------------------------- killed

class TrainerKilledAtAnyMoment : public TrainerFaultsTest,
                                 public ::testing::WithParamInterface<Phase> {};

TEST_P(TrainerKilledAtAnyMoment, TheOwnerServesOnAndWhatItHeldIsFree) {
  std::mt19937 random(static_cast<unsigned>(GetParam()) + 1);
  for (int round = 0; round < 3; ++round) {
    auto victim = StartVictim("train");
    victim->WaitForLine("done ");
    victim->WaitForLine(PhaseName(GetParam()));
    absl::SleepFor(absl::Microseconds(random() % 5000));  // until a random moment
    victim->Kill();
    EXPECT_TRUE(StepOnce().ok()) << "others are not held up";
    training_->Forget();
  }
  ExpectAsInitially();
}

INSTANTIATE_TEST_SUITE_P(Phases, TrainerKilledAtAnyMoment,
                         ::testing::Values(Phase::kPull, Phase::kBackward, Phase::kStep),
                         [](const auto& info) { return PhaseName(info.param); });

TEST_F(TrainerFaultsTest,
       RREF_32_RREF_33_KilledWithReferencesAndAContextItHoldsNothingAfterItsLease) {
  auto victim = StartVictim("hold");
  victim->WaitForLine("holding");
  const Holdings held = Held();
  EXPECT_GT(held.forks, initially_.forks);
  EXPECT_EQ(held.anonymous_values, initially_.anonymous_values + 1);
  EXPECT_EQ(held.contexts, initially_.contexts + 1);
  victim->Kill();
  ExpectAsInitially();
}

// ---------------------------------------------------------------- replaced under its name

TEST_F(TrainerFaultsTest, RestartedUnderItsNameItTakesOverAndNothingIsAppliedTwice) {
  uint64_t told = 0, unknown = 0;
  for (int life = 0; life < 4; ++life) {
    auto victim = StartVictim("train");
    victim->WaitForLine("ready");
    victim->WaitForLine("done 2");
    victim->WaitForLine("step");
    victim->Kill();
    told += 2 + victim->CountLines("done ");
    unknown += 1;
  }
  const uint64_t steps = Steps() - 1;  // without the observer's own step
  EXPECT_THAT(steps, Ge(told));
  EXPECT_THAT(steps, Le(told + unknown));
  ExpectAsInitially();
}

// ---------------------------------------------------------------- stopped

class PatientOwnerTest : public TrainerFaultsTest {
 protected:
  PatientOwnerTest() : TrainerFaultsTest(absl::Seconds(30)) {}
};

TEST_F(PatientOwnerTest, StoppedForLessThanItsLeaseNothingIsLost) {
  auto victim = StartVictim("hold");
  victim->WaitForLine("holding");
  const uint64_t epoch = EpochOfVictim();
  victim->Stop();
  EXPECT_TRUE(Eventually([&] { return !VictimIsConnected(); })) << "even the link is given up";
  victim->Continue();
  EXPECT_TRUE(Eventually([&] { return VictimIsConnected(); }));
  for (int i = 0; i < 20; ++i) ASSERT_EQ(victim->WaitForLine(""), "read");
  EXPECT_EQ(EpochOfVictim(), epoch);
}

TEST_F(TrainerFaultsTest, StoppedAndReplacedTheFormerOneIsFenced) {
  auto former = StartVictim("train");
  former->WaitForLine("done 1");
  former->WaitForLine("step");
  former->Stop();
  // The stopped trainer keeps its name until its lease ends.
  EXPECT_TRUE(Eventually([&] { return EpochOfVictim() == 0; }));
  auto latter = StartVictim("train");
  latter->WaitForLine("done 1");
  former->Continue();
  EXPECT_THAT(former->WaitForLine("error "), HasSubstr("fenced"));
  latter->WaitForLine("done ");

  latter->Kill();
  EXPECT_TRUE(Eventually([&] { return EpochOfVictim() == 0; }));
  const uint64_t steps = Steps();
  for (int i = 0; i < 3; ++i) EXPECT_THAT(former->WaitForLine("error "), HasSubstr("fenced"));
  EXPECT_EQ(Steps(), steps) << "the fenced one has applied something";
  EXPECT_THAT(Read(*observer_, training_->parameters()[0]), Each(-static_cast<float>(steps)));
}

TEST_F(TrainerFaultsTest, StoppedForLongerItIsToldAndStartsAnew) {
  auto victim = StartVictim("hold");
  victim->WaitForLine("holding");
  const uint64_t epoch = EpochOfVictim();
  EXPECT_NE(epoch, 0u);
  victim->Stop();
  EXPECT_TRUE(Eventually([&] { return Held() == initially_; })) << Held();
  victim->Continue();
  EXPECT_THAT(victim->WaitForLine("error "), AllOf(HasSubstr("ABORTED"), HasSubstr("owner0")));
  victim->WaitForLine("done 2");
  EXPECT_GT(EpochOfVictim(), epoch);
  victim->Kill();
  ExpectAsInitially();
}

TEST_F(TrainerFaultsTest, StoppedDuringAStepForLongerNothingOfItIsAppliedLater) {
  auto victim = StartVictim("train");
  victim->WaitForLine("done 1");
  victim->WaitForLine("step");
  victim->Stop();
  const uint64_t done = 1 + victim->CountLines("done ");  // before it was stopped
  EXPECT_TRUE(Eventually([&] { return EpochOfVictim() == 0; }));
  const uint64_t steps = Steps();
  EXPECT_THAT(steps, Ge(1 + done));  // the observer's step and those of the victim
  EXPECT_THAT(steps, Le(2 + done));  // and perhaps the step in which the victim was stopped
  victim->Continue();
  victim->WaitForLine("error ABORTED");
  victim->WaitForLine(absl::StrCat("done ", done + 2));
  victim->Kill();
  // At most two more steps and these were reported as done, and it may have been killed in another.
  const uint64_t more = victim->CountLines("done ");
  EXPECT_THAT(Steps(), Ge(steps + 1 + more));
  EXPECT_THAT(Steps(), Le(steps + 3 + more));
  ExpectAsInitially();
}

}  // namespace
}  // namespace psd::crash
