// Steps that have given up their thread while the device still works on them. The tests run with
// several seeds, which decide in which order the device works.

#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/change/change.h"
#include "core/change/changes.h"
#include "core/change/replay.h"
#include "core/device/emulated/emulated_device.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/program/checked_program.h"
#include "core/runtime/runtime.h"
#include "core/store/store.h"
#include "core/store/write_claims.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/change/memory_journal.h"
#include "tests/device/device_owner.h"
#include "tests/device/owner_steps.h"
#include "tests/device/stall.h"

namespace psd {
namespace {

using optim::OwnerOptimizer;
using store::EntryPtr;
using testing::Stall;

class StepsUnderWayTest : public OwnerStepsTest {
 protected:
  EntryPtr HostOptimizer(const std::string& name, const EntryPtr& parameter) {
    return OwnerStepsTest::HostOptimizer(name, {"sgd", {{"lr", 1}}}, {parameter});
  }
  std::shared_ptr<OwnerOptimizer> NewOptimizer(const std::string& name, const EntryPtr& parameter) {
    return optim::OptimizerOf(*HostOptimizer(name, parameter));
  }
  // Asks for a step with the gradient 1 for every element.
  void Step(OwnerOptimizer& optimizer, Answer& answer) {
    Step(optimizer, answer, runtime().ids().Next());
  }
  void Step(OwnerOptimizer& optimizer, Answer& answer, GlobalId id) {
    const EntryPtr& parameter = optimizer.table()[0].entry();
    const Tensor gradient =
        *Tensor::Full(parameter->parameter->shape(), parameter->parameter->dtype(), 1);
    OwnerStepsTest::Step(optimizer, Must(optimizer.table().Plan({{parameter->id, gradient, 1}})),
                         answer, id);
  }
  // Waits until a step has been added to the stalled device.
  static void AwaitUnderWay(const EntryPtr& parameter, const Answer& answer) {
    while (parameter->parameter->version() == 1 && !answer.given) std::this_thread::yield();
    EXPECT_FALSE(answer.given) << answer.result.status();
  }

  const EntryPtr w_ = NewParameter("w", "emu:0", Full(5));
  const std::shared_ptr<OwnerOptimizer> optimizer_ = NewOptimizer("main", w_);
};

INSTANTIATE_TEST_SUITE_P(Seeds, StepsUnderWayTest, ::testing::Values(0, 1, 2));

TEST_P(StepsUnderWayTest, AStepFailsWhenItsDeviceIsLostMeanwhile) {
  const EntryPtr b = NewParameter("b", "cpu", Full(5));
  const auto here = NewOptimizer("here", b);
  Answer lost, stepped;
  {
    const Stall stall(device());
    Step(*optimizer_, lost);
    AwaitUnderWay(w_, lost);
    device().Lose("it fell off the bus");
    Step(*here, stepped);
    Await(stepped);
    EXPECT_TRUE(stepped.result.ok()) << stepped.result.status();
  }
  Await(lost);
  ExpectLost(lost, "it fell off the bus");
  EXPECT_EQ(journal_->count<optim::StepChange>(), 1u);
  ExpectElements(b, Full(4));
}

// Nobody would see how its work ends, so what it has written is not to be trusted.
TEST_P(StepsUnderWayTest, AStepWhoseEndCannotBeSeenLosesItsDevice) {
  Answer first, refused, later;
  Step(*optimizer_, first);
  Await(first);
  EXPECT_TRUE(first.result.ok()) << first.result.status();
  device().RefuseEvent(1);
  Step(*optimizer_, refused);
  Await(refused);
  EXPECT_FALSE(refused.result.ok());
  EXPECT_EQ(device().health().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(w_->parameter->Pin().status(), device().health());
  Step(*optimizer_, later);
  Await(later);
  ExpectLost(later, "the end of a step could not be seen: emu:0 refused to record an event");
  EXPECT_EQ(journal_->count<optim::StepChange>(), 1u);
}

// The journal then ends the names first, and its replay steps a value without a name.
TEST_P(StepsUnderWayTest, DropsMeanwhileAreNoHindrance) {
  Answer answer;
  const EntryPtr optimizer = Must(runtime().store().Lookup("main"));
  {
    const Stall stall(device());
    Step(*optimizer_, answer);
    AwaitUnderWay(w_, answer);
    ASSERT_TRUE(runtime().changes().Apply(change::DropName{"main", optimizer}).ok());
    ASSERT_TRUE(runtime().changes().Apply(change::DropName{"w", w_}).ok());
  }
  Await(answer);
  EXPECT_TRUE(answer.result.ok()) << answer.result.status();
  ExpectElements(w_, Full(4));
  EXPECT_EQ(journal_->count<optim::StepChange>(), 1u);
  DeviceOwner again("again");
  worker::Runtime& replaying = again.owner().runtime();
  const program::ProgramLimits limits;
  const absl::Status replayed = change::ReplayAll(
      journal_->bytes(), {replaying.store(), replaying.changes(), replaying.operators(), limits});
  EXPECT_TRUE(replayed.ok()) << replayed;
}

// The step itself keeps the optimizer until it is answered, and then lets go of it.
TEST_P(StepsUnderWayTest, AStepKeepsItsOptimizer) {
  Answer answer;
  const EntryPtr parameter = NewParameter("v", "emu:0", Full(5));
  const size_t used = device().used_bytes();
  {
    EntryPtr hosted = HostOptimizer("", parameter);
    const Stall stall(device());
    Step(*optim::OptimizerOf(*hosted), answer);
    AwaitUnderWay(parameter, answer);
    runtime().store().Erase(hosted->id);
    hosted.reset();
    EXPECT_GT(device().used_bytes(), used);
  }
  Await(answer);
  EXPECT_TRUE(answer.result.ok()) << answer.result.status();
  ExpectElements(parameter, Full(4));
  while (device().used_bytes() > used) std::this_thread::yield();
}

TEST_P(StepsUnderWayTest, TheEndOfASessionDoesNotUndoItsStep) {
  Answer answer;
  {
    const Stall stall(device());
    Step(*optimizer_, answer);
    AwaitUnderWay(w_, answer);
    optimizer_->EndSession({kTrainer, 1});
  }
  Await(answer);
  EXPECT_TRUE(answer.result.ok()) << answer.result.status();
  EXPECT_EQ(optimizer_->stats().steps, 1u);
}

// A trainer that has not got the answer asks again.
TEST_P(StepsUnderWayTest, ARepeatedStepWaitsForTheFirst) {
  Answer answer, again;
  const GlobalId id{kTrainer, 1};
  {
    const Stall stall(device());
    Step(*optimizer_, answer, id);
    AwaitUnderWay(w_, answer);
    Step(*optimizer_, again, id);
  }
  Await(answer);
  Await(again);
  EXPECT_FALSE(Must(std::move(answer.result)).repeated);
  EXPECT_TRUE(Must(std::move(again.result)).repeated);
  ExpectElements(w_, Full(4));
}

// Also those that only begin then, because enough others are under way.
TEST_P(StepsUnderWayTest, ShutdownEndsAllSteps) {
  Answer answers[store::kMaxTogether + 2];
  std::thread stopper;
  {
    const Stall stall(device());
    for (Answer& each : answers) Step(*optimizer_, each);
    AwaitUnderWay(w_, answers[0]);
    stopper = std::thread([this] { runtime().Shutdown(absl::ZeroDuration()); });
  }
  stopper.join();
  for (const Answer& each : answers) {
    EXPECT_TRUE(each.given);
    EXPECT_TRUE(each.result.ok()) << each.result.status();
  }
  EXPECT_EQ(journal_->count<optim::StepChange>(), std::size(answers));
  ExpectElements(w_, Full(5 - static_cast<float>(std::size(answers))));
}

TEST_P(StepsUnderWayTest, WhatFollowsAStepIsChargedToTheWorker) {
  Answer answer;
  Step(*optimizer_, answer);
  Await(answer);
  EXPECT_EQ(journal_->scope, memory_->transit().get());
}

// The copy of the gradient then waits for the device.
TEST_P(StepsUnderWayTest, AStepNeedsNoPinnedMemory) {
  const auto all = Must(device().pinned_memory().Allocate(EmulatedDeviceOptions().pinned_bytes));
  Answer answer;
  Step(*optimizer_, answer);
  Await(answer);
  EXPECT_TRUE(answer.result.ok()) << answer.result.status();
  ExpectElements(w_, Full(4));
}

TEST_P(StepsUnderWayTest, AParameterWithoutElementsIsStepped) {
  const Tensor none = *Tensor::Full({0}, DType::kF32, 0);
  const EntryPtr empty = NewParameter("empty", "emu:0", none);
  Answer answer;
  Step(*NewOptimizer("over_empty", empty), answer);
  Await(answer);
  EXPECT_EQ(Must(std::move(answer.result)).steps_accepted, 1u);
  EXPECT_EQ(empty->parameter->version(), 2u);
  ExpectElements(empty, none);
}

}  // namespace
}  // namespace psd
