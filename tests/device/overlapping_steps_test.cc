// Steps of the same parameters that are under way on a device together. The tests run with several
// seeds, which decide in which order the device works.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/checkpoint.h"
#include "client/psd.h"
#include "core/base/ids.h"
#include "core/base/stream.h"
#include "core/change/change.h"
#include "core/change/replay.h"
#include "core/device/emulated/emulated_device.h"
#include "core/optim/functional/optimizer_spec.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/options/schedule.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/steps/step_request.h"
#include "core/program/checked_program.h"
#include "core/runtime/runtime.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "core/store/write_claims.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/change/memory_journal.h"
#include "tests/core/checkpoint/fake_file_system.h"
#include "tests/core/tensor/compare.h"
#include "tests/device/device_owner.h"
#include "tests/device/owner_steps.h"
#include "tests/device/stall.h"

namespace psd {
namespace {

using optim::OwnerOptimizer;
using optim::StepTerms;
using store::EntryPtr;
using testing::Stall;

// SGD with momentum, so the result depends on the order of the steps. All numbers are exact.
const optim::OptimizerSpec kMomentum{"sgd", {{"lr", 1}, {"momentum", 0.5}}};

// What it makes of a parameter whose elements are all the same.
struct Expected {
  float value = 5;
  float momentum = 0;
  void Step(float gradient, float rate = 1) {
    momentum = 0.5F * momentum + gradient;
    value -= rate * momentum;
  }
};

class OverlappingStepsTest : public OwnerStepsTest {
 protected:
  // Asks for a step of `w_` with this gradient for every element.
  Answer& Step(OwnerOptimizer& optimizer, float gradient, GlobalId id, const StepTerms& terms = {},
               Incarnation trainer = kTrainer) {
    Answer& answer = steps_.emplace_back();
    OwnerStepsTest::Step(optimizer,
                         Must(optimizer.table().Plan({{w_->id, Full(gradient), /*version=*/1}})),
                         answer, id, terms, trainer);
    return answer;
  }
  Answer& Step(OwnerOptimizer& optimizer, float gradient) {
    return Step(optimizer, gradient, runtime().ids().Next());
  }
  // Waits until this version is under way on the stalled device.
  void AwaitVersion(uint64_t version) {
    while (w_->parameter->version() < version) std::this_thread::yield();
  }
  void AwaitAll() {
    for (const Answer& each : steps_) Await(each);
  }
  // The steps must have been answered with success, in the order in which they were asked for.
  void ExpectAllInOrder() {
    int number = 0;
    for (const Answer& each : steps_) {
      EXPECT_TRUE(each.result.ok()) << each.result.status();
      EXPECT_EQ(each.number, ++number);
    }
  }
  // The steps that the table counts for the parameter, when no earlier change of it is under way.
  int64_t CountedSteps() {
    Promise<int64_t> counted;
    store::WriteClaims& claims = runtime().store().write_claims();
    claims.Claim({w_->id}, [&](store::WriteClaims::ClaimId claim) {
      const int64_t steps = optimizer_->table()[0].steps();
      claims.Release(claim);
      counted.Set(steps);
    });
    return Must(counted.future().Wait());
  }
  size_t recorded() const { return journal_->count<optim::StepChange>(); }
  // A replay of the journal must give the same contents.
  void ExpectReplays() {
    DeviceOwner again("again");
    worker::Runtime& replaying = again.owner().runtime();
    const program::ProgramLimits limits;
    const absl::Status replayed = change::ReplayAll(
        journal_->bytes(), {replaying.store(), replaying.changes(), replaying.operators(), limits});
    ASSERT_TRUE(replayed.ok()) << replayed;
    EXPECT_EQ(change::TextOf(replaying.store()), change::TextOf(runtime().store()));
  }

  std::deque<Answer> steps_;
  const EntryPtr w_ = NewParameter("w", "emu:0", Full(5));
  const std::shared_ptr<OwnerOptimizer> optimizer_ = NewOptimizer("main", kMomentum, {w_});
};

INSTANTIATE_TEST_SUITE_P(Seeds, OverlappingStepsTest, ::testing::Range<uint64_t>(0, 4));

TEST_P(OverlappingStepsTest, StepsAreAppliedAndAnsweredInTheirOrder) {
  Expected expected;
  {
    const Stall stall(device());
    for (const float gradient : {1, 2, 4}) {
      Step(*optimizer_, gradient);
      expected.Step(gradient);
    }
    AwaitVersion(4);
    EXPECT_EQ(optimizer_->stats().steps, 0u);
    EXPECT_EQ(recorded(), 0u);
    EXPECT_EQ(answers_, 0);
  }
  AwaitAll();
  ExpectAllInOrder();
  for (size_t i = 0; i < steps_.size(); ++i) {
    EXPECT_EQ(steps_[i].result->steps_accepted, i + 1);
    EXPECT_EQ(steps_[i].result->max_staleness, i);
  }
  EXPECT_EQ(optimizer_->stats().steps, 3u);
  EXPECT_EQ(CountedSteps(), 3);
  ExpectElements(w_, Full(expected.value));
  EXPECT_TRUE(AllPinnedMemoryIsFree());
  ExpectReplays();
}

TEST_P(OverlappingStepsTest, SoAreStepsOfTwoOptimizers) {
  const auto other = NewOptimizer("other", {"sgd", {{"lr", 2}}}, {w_});
  Expected expected;
  {
    const Stall stall(device());
    Step(*optimizer_, 1);
    Step(*other, 1);
    Step(*optimizer_, 2);
    AwaitVersion(4);
    EXPECT_EQ(answers_, 0);
  }
  AwaitAll();
  ExpectAllInOrder();
  expected.Step(1);
  expected.Step(2);
  ExpectElements(w_, Full(expected.value - 2));
  ExpectReplays();
}

// Two trainers without rounds, each with one step at a time, as fast as they can.
TEST_P(OverlappingStepsTest, TwoTrainersStepSideBySide) {
  constexpr int kSteps = 20;
  const auto plain = NewOptimizer("plain", {"sgd", {{"lr", 1}}}, {w_});
  std::deque<Answer> answers[2];
  std::vector<std::thread> trainers;
  for (uint64_t t = 0; t < 2; ++t) {
    trainers.emplace_back([&, t] {
      for (uint64_t i = 1; i <= kSteps; ++i) {
        const uint64_t version = Must(w_->parameter->Pin()).version;
        OwnerStepsTest::Step(*plain, Must(plain->table().Plan({{w_->id, Full(1), version}})),
                             answers[t].emplace_back(), {t + 1, i}, {}, t + 1);
        Await(answers[t].back());
      }
    });
  }
  for (std::thread& each : trainers) each.join();
  for (const std::deque<Answer>& each : answers)
    for (const Answer& answer : each) EXPECT_TRUE(answer.result.ok()) << answer.result.status();
  EXPECT_EQ(plain->stats().steps, 2u * kSteps);
  ExpectElements(w_, Full(5 - 2 * kSteps));
  EXPECT_TRUE(AllPinnedMemoryIsFree());
  ExpectReplays();
}

TEST_P(OverlappingStepsTest, OnlySoManyAreUnderWay) {
  Expected expected;
  {
    const Stall stall(device());
    for (size_t i = 0; i < store::kMaxTogether + 3; ++i) {
      Step(*optimizer_, static_cast<float>(i));
      expected.Step(static_cast<float>(i));
    }
    AwaitVersion(1 + store::kMaxTogether);
    EXPECT_EQ(w_->parameter->version(), 1 + store::kMaxTogether);
    EXPECT_EQ(answers_, 0);
  }
  AwaitAll();
  ExpectAllInOrder();
  ExpectElements(w_, Full(expected.value));
}

// Operations two and four are the kernels of the first and of the second step.
TEST_P(OverlappingStepsTest, StepsBehindOneThatFailsFailToo) {
  for (const int step : {1, 2}) {
    Restart();
    steps_.clear();
    const size_t before = recorded();
    const EntryPtr w = NewParameter("w", "emu:0", Full(5));
    const auto optimizer = NewOptimizer("main", kMomentum, {w});
    const auto ask = [&](GlobalId id) {
      OwnerStepsTest::Step(*optimizer, Must(optimizer->table().Plan({{w->id, Full(1), 1}})),
                           steps_.emplace_back(), id);
    };
    {
      const Stall stall(device());
      device().FailOperation(2 * step);
      for (uint64_t i = 1; i <= 3; ++i) ask({kTrainer, i});
      while (w->parameter->version() < 4) std::this_thread::yield();
    }
    AwaitAll();
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (i + 1 < static_cast<size_t>(step)) {
        EXPECT_TRUE(steps_[i].result.ok()) << steps_[i].result.status();
      } else {
        ExpectLost(steps_[i], "sgd");
      }
    }
    const auto counted = static_cast<size_t>(step - 1);
    EXPECT_EQ(optimizer->stats().steps, counted);
    EXPECT_EQ(recorded(), before + counted);
    EXPECT_EQ(w->parameter->Pin().status().code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(AllPinnedMemoryIsFree());
    // A trainer that asks again is not told that its step was applied.
    ask({kTrainer, 3});
    Await(steps_.back());
    ExpectLost(steps_.back(), "sgd");
  }
}

// The device goes on when it refuses work.
TEST_P(OverlappingStepsTest, AStepThatIsRefusedLeavesTheOthersAlone) {
  Expected expected;
  {
    const Stall stall(device());
    Step(*optimizer_, 1);
    AwaitVersion(2);
    device().RefuseOperation(1);
    Step(*optimizer_, 2);
    Step(*optimizer_, 4);
  }
  AwaitAll();
  EXPECT_TRUE(steps_[0].result.ok()) << steps_[0].result.status();
  EXPECT_FALSE(steps_[1].result.ok());
  EXPECT_EQ(Must(std::move(steps_[2].result)).steps_accepted, 2u);
  expected.Step(1);
  expected.Step(4);
  ExpectElements(w_, Full(expected.value));
  EXPECT_EQ(CountedSteps(), 2);
  EXPECT_EQ(recorded(), 2u);
  ExpectReplays();
}

TEST_P(OverlappingStepsTest, ARepeatedStepIsNotAppliedTwice) {
  Expected expected;
  {
    const Stall stall(device());
    Step(*optimizer_, 1, {kTrainer, 1});
    Step(*optimizer_, 2, {kTrainer, 2});
    AwaitVersion(3);
    Step(*optimizer_, 1, {kTrainer, 1});
    Step(*optimizer_, 2, {kTrainer, 2});
    Step(*optimizer_, 4, {kTrainer, 3});
  }
  AwaitAll();
  for (size_t i = 0; i < steps_.size(); ++i)
    EXPECT_EQ(Must(std::move(steps_[i].result)).repeated, i == 2 || i == 3);
  for (const float gradient : {1, 2, 4}) expected.Step(gradient);
  ExpectElements(w_, Full(expected.value));
  EXPECT_EQ(recorded(), 3u);
}

TEST_P(OverlappingStepsTest, AScheduleCountsStepsUnderWay) {
  optim::OptimizerSettings settings;
  settings.schedule = optim::Schedule::Step(/*period=*/1, /*gamma=*/0.5);
  const auto scheduled = NewOptimizer("scheduled", kMomentum, {w_}, settings);
  Expected expected;
  {
    const Stall stall(device());
    float rate = 1;
    for (const float gradient : {1, 2, 4}) {
      Step(*scheduled, gradient);
      expected.Step(gradient, rate);
      rate /= 2;
    }
    AwaitVersion(4);
  }
  AwaitAll();
  ExpectElements(w_, Full(expected.value));
  ExpectReplays();
}

// A step that is skipped because of an overflow, and options, take effect between the steps before
// and behind them, also in the journal.
TEST_P(OverlappingStepsTest, OtherChangesKeepTheirPlaces) {
  absl::StatusOr<optim::GroupOptions> changed;
  StepTerms overflow;
  overflow.overflow = true;
  Expected expected;
  {
    const Stall stall(device());
    Step(*optimizer_, 1);
    Step(*optimizer_, 2);
    AwaitVersion(3);
    Step(*optimizer_, 4, runtime().ids().Next(), overflow);
    optimizer_->SetOptions(0, {{"lr", 2}}, /*version=*/0, /*life=*/{},
                           [&](absl::StatusOr<optim::GroupOptions> options) { changed = options; });
    Step(*optimizer_, 8);
    EXPECT_EQ(w_->parameter->version(), 3u);
    EXPECT_EQ(answers_, 0);
  }
  AwaitAll();
  const uint64_t accepted[] = {1, 2, 2, 3};
  for (size_t i = 0; i < steps_.size(); ++i) {
    const optim::StepResult result = Must(std::move(steps_[i].result));
    EXPECT_EQ(result.steps_accepted, accepted[i]);
    EXPECT_EQ(result.skipped, i == 2);
  }
  EXPECT_TRUE(changed.ok()) << changed.status();
  expected.Step(1);
  expected.Step(2);
  expected.Step(8, /*rate=*/2);
  ExpectElements(w_, Full(expected.value));
  ExpectReplays();
}

TEST_P(OverlappingStepsTest, AnAssignmentKeepsItsPlace) {
  absl::StatusOr<uint64_t> version;
  Expected expected;
  {
    const Stall stall(device());
    Step(*optimizer_, 1);
    Step(*optimizer_, 2);
    AwaitVersion(3);
    runtime().changes().Assign(w_, Full(100),
                               [&](absl::StatusOr<uint64_t> assigned) { version = assigned; });
    Step(*optimizer_, 4);
  }
  AwaitAll();
  ExpectAllInOrder();
  EXPECT_EQ(Must(std::move(version)), 4u);
  expected.Step(1);
  expected.Step(2);
  expected.value = 100;
  expected.Step(4);
  ExpectElements(w_, Full(expected.value));
  ExpectReplays();
}

// A reader on another stream gets the version of a step under way, and the steps behind it do not
// write over it.
TEST_P(OverlappingStepsTest, AReaderKeepsTheVersionOfAStepUnderWay) {
  Stream& other = **device().AddStream();
  Tensor negated;
  Expected expected;
  {
    const Stall stall(device());
    for (const float gradient : {1, 2}) {
      Step(*optimizer_, gradient);
      expected.Step(gradient);
    }
    AwaitVersion(3);
    {
      const StreamScope scope(other);
      const store::PinnedVersion pinned = Must(w_->parameter->Pin());
      EXPECT_EQ(pinned.version, 3u);
      negated = *ops::Neg(pinned.tensor);
    }
    for (const float gradient : {4, 8}) Step(*optimizer_, gradient);
    AwaitVersion(5);
  }
  AwaitAll();
  const StreamScope scope(other);
  EXPECT_TRUE(ops::Equal(*negated.ToHost(), Full(-expected.value)));
  for (const float gradient : {4, 8}) expected.Step(gradient);
  ExpectElements(w_, Full(expected.value));
}

// A round of two trainers is one step.
TEST_P(OverlappingStepsTest, RoundsOverlap) {
  optim::OptimizerSettings settings;
  settings.mode = optim::UpdateMode::Synchronous(2, optim::UpdateMode::Reduction::kSum);
  const auto rounds = NewOptimizer("rounds", kMomentum, {w_}, settings);
  Expected expected;
  {
    const Stall stall(device());
    for (uint64_t round = 1; round <= 3; ++round) {
      for (const Incarnation trainer : {1, 2})
        Step(*rounds, static_cast<float>(round), {trainer, round}, {}, trainer);
      expected.Step(static_cast<float>(2 * round));
    }
    AwaitVersion(4);
    EXPECT_EQ(answers_, 0);
  }
  AwaitAll();
  ExpectAllInOrder();
  for (size_t i = 0; i < steps_.size(); ++i) {
    EXPECT_EQ(steps_[i].result->steps_accepted, i / 2 + 1);
    EXPECT_EQ(steps_[i].result->trainers, 2);
  }
  ExpectElements(w_, Full(expected.value));
  ExpectReplays();
}

// Both gradients are of the first version, so the second one is as old as it may be.
TEST_P(OverlappingStepsTest, SoDoStepsThatWaitSoThatNoGradientGetsTooOld) {
  optim::OptimizerSettings settings;
  settings.mode = optim::UpdateMode::BoundedStaleness(1, optim::UpdateMode::WhenStale::kWait);
  const auto paced = NewOptimizer("paced", kMomentum, {w_}, settings);
  Expected expected;
  {
    const Stall stall(device());
    for (const Incarnation trainer : {1, 2}) {
      Step(*paced, 4, {trainer, 1}, {}, trainer);
      expected.Step(4);
    }
    AwaitVersion(3);
    EXPECT_EQ(answers_, 0);
    EXPECT_EQ(paced->stats().waiting, 0u);
  }
  AwaitAll();
  ExpectAllInOrder();
  for (size_t i = 0; i < steps_.size(); ++i) EXPECT_EQ(steps_[i].result->steps_accepted, i + 1);
  ExpectElements(w_, Full(expected.value));
  // Both trainers have been answered, and the first one is not too fast.
  const uint64_t version = w_->parameter->version();
  Answer third;
  OwnerStepsTest::Step(*paced, Must(paced->table().Plan({{w_->id, Full(8), version}})), third,
                       {1, 2}, {}, 1);
  Await(third);
  EXPECT_EQ(Must(std::move(third.result)).steps_accepted, 3u);
  ExpectReplays();
}

// A save has the elements and the state behind the same step.
TEST_P(OverlappingStepsTest, ASaveIsBetweenTwoSteps) {
  const std::unique_ptr<Worker> trainer = StartTrainer("trainer", {host_->owner().address()});
  SaveOptions save;
  save.dir = "saves";
  save.files = std::make_shared<checkpoint::FakeFileSystem>();
  std::vector<Expected> expected(1);
  std::thread saver;
  {
    const Stall stall(device());
    for (const float gradient : {1, 2, 4}) {
      Step(*optimizer_, gradient);
      expected.emplace_back(expected.back()).Step(gradient);
      if (gradient != 2) continue;
      AwaitVersion(3);
      saver = std::thread([&] { Must(SaveModel(*trainer, save)); });
    }
  }
  saver.join();
  AwaitAll();
  ExpectAllInOrder();
  LoadOptions load;
  load.dir = save.dir;
  load.files = save.files;
  Must(LoadModel(*trainer, load));
  const auto steps = static_cast<size_t>(CountedSteps());
  ASSERT_GE(steps, 2u);
  ASSERT_LE(steps, 3u);
  ExpectElements(w_, Full(expected[steps].value));
  Answer& behind = Step(*optimizer_, 8);
  Await(behind);
  EXPECT_TRUE(behind.result.ok()) << behind.result.status();
  expected[steps].Step(8);
  ExpectElements(w_, Full(expected[steps].value));
}

}  // namespace
}  // namespace psd
