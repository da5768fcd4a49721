// Gradients of a trainer on a device come in pieces to an owner on another one. Both are in one
// process, with an emulated device each, and share nothing.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/gradient_messages.h"
#include "core/runtime/runtime.h"
#include "core/tensor/copy_to.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/lending_world.h"
#include "tests/device/stall.h"

namespace psd {
namespace {

using testing::AllAre;
using testing::ElementsThere;
using ::testing::HasSubstr;
using testing::kBytes;
using testing::kElements;
using testing::Sharing;
using testing::Step;
using testing::SumOfSquares;
using testing::World;

constexpr size_t kPieces = 3;  // of a gradient

class GradientsInPiecesTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  void Settle() {
    ASSERT_TRUE(there().Synchronize().ok());
    ASSERT_TRUE(here().Synchronize().ok());
  }
  EmulatedDevice& there() { return world_.owners_device(); }
  EmulatedDevice& here() { return world_.trainers_device(); }
  // A gradient of a parameter, on the trainer's device.
  Tensor OnTheDevice(double element) {
    return Must(CopyTo(&here(), Must(Tensor::Full({kElements}, DType::kF32, element))));
  }
  // The device of the gradient that the owner has; null is the host.
  Device* DeviceOfGradient(const RRef& parameter) {
    for (const auto& context : world_.host().owner().runtime().autograd().Contexts()) {
      const auto gradient = context->Gradient(parameter.value_id());
      if (gradient.ok()) return gradient->gradient.device();
    }
    ADD_FAILURE() << "there is no gradient";
    return nullptr;
  }
  // Waits until nobody has pinned memory of the trainer's device, which no message needs then.
  void AwaitNothingPinned() {
    while (!here().pinned_memory().Allocate(pinned_bytes_).ok()) std::this_thread::yield();
  }

  const size_t pinned_bytes_ = EmulatedDeviceOptions().pinned_bytes;  // of each device
  World world_{Sharing(false), /*trainer_shares=*/false, /*trainer_shares_memory=*/false,
               GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Seeds, GradientsInPiecesTest, ::testing::Values(0, 1));

TEST_P(GradientsInPiecesTest, EachPieceIsCopiedOnceOnEachSide) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable loss = SumOfSquares(step.Fetch(w));
  Settle();
  const size_t copies_there = there().copies_added(), copies_here = here().copies_added();
  const absl::Status back = step.Backward(loss);
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(there().copies_added(), copies_there + kPieces);
  // And one number: the 1 with which a backward starts at the loss.
  EXPECT_EQ(here().copies_added(), copies_here + kPieces + 1);
  EXPECT_GT(here().pinned_peak_bytes(), 0);
  EXPECT_EQ(DeviceOfGradient(w), &there());
  EXPECT_TRUE(AllAre(6, step.Gradient(w)));
  AwaitNothingPinned();
}

TEST_P(GradientsInPiecesTest, AStepReadsThemWhereTheyAre) {
  const RRef w = world_.Make("w", 3);
  const auto optimizer = Must(DistributedOptimizer::Create(*world_.trainer(), Sgd{0.5}, {w}));
  Step step(world_);
  ASSERT_TRUE(step.Backward(SumOfSquares(step.Fetch(w))).ok());
  Settle();
  const size_t copies = there().copies_added();
  ASSERT_TRUE(optimizer->Step(step.context()).ok());
  EXPECT_EQ(there().copies_added(), copies);
  EXPECT_TRUE(AllAre(0, ElementsThere(world_.Pull(w))));
}

TEST_P(GradientsInPiecesTest, TheirMemoryIsFreedWithTheContext) {
  const RRef w = world_.Make("w", 3), b = world_.Make("b", 4);
  const size_t used_here = here().used_bytes(), used_there = there().used_bytes();
  {
    Step step(world_);
    const Variable loss = Add(SumOfSquares(step.Fetch(w)), SumOfSquares(step.Fetch(b)));
    ASSERT_TRUE(step.Backward(loss).ok());
    EXPECT_TRUE(AllAre(8, step.Gradient(b)));
    EXPECT_GE(there().used_bytes(), used_there + 2 * kBytes);
  }
  while (here().used_bytes() > used_here) std::this_thread::yield();
  while (there().used_bytes() > used_there) std::this_thread::yield();
  AwaitNothingPinned();
}

// The gradient of a sum is one number in memory, so it is made contiguous first.
TEST_P(GradientsInPiecesTest, AGradientThatIsNotContiguous) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  ASSERT_TRUE(step.Backward(Sum(step.Fetch(w))).ok());
  EXPECT_EQ(DeviceOfGradient(w), &there());
  EXPECT_TRUE(AllAre(1, step.Gradient(w)));
}

TEST_P(GradientsInPiecesTest, TheGradientsOfUsesAndPassesAreAddedUp) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable once = step.Fetch(w), again = step.Fetch(w);
  ASSERT_TRUE(step.Backward(Add(SumOfSquares(once), Sum(again))).ok());
  EXPECT_TRUE(AllAre(7, step.Gradient(w)));
  ASSERT_TRUE(step.Backward(SumOfSquares(step.Fetch(w))).ok());
  EXPECT_TRUE(AllAre(13, step.Gradient(w)));
}

// The gradient of the result of a program enters the owner's part of the graph.
TEST_P(GradientsInPiecesTest, AGradientGoesThroughAProgramOfTheOwner) {
  const RRef w = world_.Make("w", 3), b = world_.Make("b", 2);
  Step step(world_);
  const Variable loss = SumOfSquares(step.ProductThere(w, b));
  Settle();
  const size_t copies = there().copies_added();
  ASSERT_TRUE(step.Backward(loss).ok());
  EXPECT_EQ(there().copies_added(), copies + kPieces);
  EXPECT_TRUE(AllAre(24, step.Gradient(w)));
  EXPECT_TRUE(AllAre(36, step.Gradient(b)));
}

TEST_P(GradientsInPiecesTest, SmallGradientsAreInTheMessage) {
  const RRef w = world_.Make("w", 3);
  CreateOptions options;
  options.requires_grad = true;
  options.device = "emu:0";
  const RRef small = Must(world_.trainer()->GetOrCreate("owner", "s", Full({5}, 4), options));
  CallOptions call = world_.there();
  Context context = Must(world_.trainer()->NewContext());
  call.context = &context;
  const Values all = Must(world_.trainer()->ToHere({small, w}, call));
  const auto squares = [&all](size_t i) { return SumOfSquares(*all[i].As<Variable>()); };
  ASSERT_TRUE(context.Backward({Add(squares(0), squares(1))}).ok());
  EXPECT_EQ(DeviceOfGradient(w), &there());
  EXPECT_TRUE(AllAre(8, Elements(Must(context.Gradient(small)))));
  EXPECT_TRUE(AllAre(6, Elements(Must(context.Gradient(w)))));
}

TEST_P(GradientsInPiecesTest, AnOwnerThatComputesOnTheHostGetsThemWhole) {
  CreateOptions options;
  options.requires_grad = true;
  const RRef w = Must(world_.trainer()->GetOrCreate("owner", "w", Full({kElements}, 3), options));
  Step step(world_);
  const Variable loss = SumOfSquares(step.Fetch(w));
  Settle();
  const size_t copies = here().copies_added();
  ASSERT_TRUE(step.Backward(loss).ok());
  EXPECT_EQ(here().copies_added(), copies + 2);  // as a whole, and the 1
  EXPECT_TRUE(AllAre(6, step.Gradient(w)));
}

// ---- room and faults

// A step needs memory for the next version and the state of the optimizer.
TEST_P(GradientsInPiecesTest, ADeviceWithLittleRoomLeavesThemOnTheHost) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable loss = SumOfSquares(step.Fetch(w));
  constexpr size_t kNeed = dist_autograd::GradientMessages::kRoomOnDevice * kBytes;
  const size_t room = there().budget_bytes() - there().used_bytes();
  const std::shared_ptr<Block> taken = Must(there().memory().Allocate(room - kNeed + 4096));
  const size_t copies = here().copies_added();
  ASSERT_TRUE(step.Backward(loss).ok());
  EXPECT_EQ(here().copies_added(), copies + kPieces + 1);
  EXPECT_EQ(DeviceOfGradient(w), nullptr);
  EXPECT_TRUE(AllAre(6, step.Gradient(w)));
  AwaitNothingPinned();
}

// After a step has ended, the next one finds the same room on the device.
TEST_P(GradientsInPiecesTest, ADeviceWithJustEnoughRoomTakesOneAfterTheOther) {
  const RRef w = world_.Make("w", 3);
  constexpr size_t kNeed = (dist_autograd::GradientMessages::kRoomOnDevice + 2) * kBytes;
  const size_t used = there().used_bytes();
  const std::shared_ptr<Block> taken =
      Must(there().memory().Allocate(there().budget_bytes() - used - kNeed));
  for (int i = 0; i < 5; ++i) {
    {
      Step step(world_);
      ASSERT_TRUE(step.Backward(SumOfSquares(step.Fetch(w))).ok());
      EXPECT_EQ(DeviceOfGradient(w), &there()) << i;
    }
    while (there().used_bytes() > used + taken->size()) std::this_thread::yield();
  }
}

TEST_P(GradientsInPiecesTest, ADeviceThatRefusesMemoryGetsThemWhole) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable loss = SumOfSquares(step.Fetch(w));
  Settle();
  there().FailAllocation(1);
  const absl::Status back = step.Backward(loss);
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(DeviceOfGradient(w), nullptr);
  EXPECT_TRUE(AllAre(6, step.Gradient(w)));
}

TEST_P(GradientsInPiecesTest, WithoutPinnedMemoryTheyAreCopiedThroughOtherMemory) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable loss = SumOfSquares(step.Fetch(w));
  Settle();
  const std::shared_ptr<Block> all = Must(here().pinned_memory().Allocate(pinned_bytes_));
  ASSERT_TRUE(step.Backward(loss).ok());
  EXPECT_EQ(DeviceOfGradient(w), &there());
  EXPECT_TRUE(AllAre(6, step.Gradient(w)));
}

TEST_P(GradientsInPiecesTest, ATrainersDeviceThatIsLostInTheMiddleFailsThePass) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable weight = step.Fetch(w);
  const Tensor gradient = OnTheDevice(6);
  Settle();
  const size_t used = there().used_bytes();
  here().FailOperation(2);
  const absl::Status back = step.context().BackwardFrom({weight}, {gradient});
  EXPECT_EQ(back.code(), absl::StatusCode::kUnavailable) << back;
  EXPECT_THAT(std::string(back.message()), HasSubstr("emu:0"));
  while (there().used_bytes() > used) std::this_thread::yield();
  AwaitNothingPinned();
}

TEST_P(GradientsInPiecesTest, AnOwnersDeviceThatIsLostInTheMiddleFailsNothingElse) {
  const RRef w = world_.Make("w", 3);
  CreateOptions options;
  options.requires_grad = true;
  const RRef b = Must(world_.trainer()->GetOrCreate("owner", "b", Full({3}, 1), options));
  Step step(world_);
  const Variable weight = step.Fetch(w);
  const Tensor gradient = OnTheDevice(6);
  Settle();
  there().FailOperation(2);
  // The gradient comes whole instead, and the owner has it on the host.
  const absl::Status back = step.context().BackwardFrom({weight}, {gradient});
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(DeviceOfGradient(w), nullptr);
  EXPECT_THAT(Read(*world_.trainer(), b), ::testing::Each(1));
  AwaitNothingPinned();
}

TEST_P(GradientsInPiecesTest, APassThatIsLateGivesEverythingBack) {
  const RRef w = world_.Make("w", 3);
  const size_t used = there().used_bytes(), used_here = here().used_bytes();
  {
    Step step(world_);
    const Variable weight = step.Fetch(w);
    const Tensor gradient = OnTheDevice(6);
    Settle();
    const testing::Stall stall(here());
    dist_autograd::BackwardOptions soon;
    soon.timeout = absl::Milliseconds(300);
    const absl::Status back = step.context().BackwardFrom({weight}, {gradient}, soon);
    EXPECT_EQ(back.code(), absl::StatusCode::kDeadlineExceeded) << back;
  }
  while (there().used_bytes() > used) std::this_thread::yield();
  while (here().used_bytes() > used_here) std::this_thread::yield();
  AwaitNothingPinned();
  Step again(world_);
  ASSERT_TRUE(again.Backward(SumOfSquares(again.Fetch(w))).ok());
  EXPECT_TRUE(AllAre(6, again.Gradient(w)));
}

// The session of the trainer ends in the middle, and what the owner has of it is freed.
TEST_P(GradientsInPiecesTest, ATrainerThatLeavesInTheMiddleLeavesNothing) {
  const RRef w = world_.Make("w", 3);
  const size_t used = there().used_bytes();
  auto step = std::make_unique<Step>(world_);
  const Variable weight = step->Fetch(w);
  const Tensor gradient = OnTheDevice(6);
  Settle();
  absl::Status back;
  {
    const testing::Stall stall(there());
    std::thread backward([&] { back = step->context().BackwardFrom({weight}, {gradient}); });
    while (there().scheduler().waiting() == 0) std::this_thread::yield();
    world_.trainer()->Shutdown(absl::ZeroDuration()).IgnoreError();
    backward.join();
  }
  EXPECT_FALSE(back.ok());
  while (there().used_bytes() > used) std::this_thread::yield();
}

}  // namespace
}  // namespace psd
