// The owner reads the gradients of a trainer on the same device in place. Both are in one process,
// with an emulated device each.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/device_loans/lender.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/elementwise.h"
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

class LentGradientsTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  void Settle() {
    ASSERT_TRUE(world_.owners_device().Synchronize().ok());
    ASSERT_TRUE(world_.trainers_device().Synchronize().ok());
  }
  // A gradient of a parameter.
  Tensor OnTheDevice(double element) {
    const Tensor here = Must(Tensor::Full({kElements}, DType::kF32, element));
    return Must(CopyTo(&world_.trainers_device(), here));
  }

  World world_{Sharing(), true, true, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Seeds, LentGradientsTest, ::testing::Values(0, 1));

TEST_P(LentGradientsTest, ABackwardCopiesNoGradient) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable loss = SumOfSquares(step.Fetch(w));
  Settle();
  const size_t copies_there = world_.owners_device().copies_added();
  const size_t copies_here = world_.trainers_device().copies_added();
  const absl::Status back = step.Backward(loss);
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_EQ(world_.owners_device().copies_added(), copies_there);
  // One number: the 1 with which a backward starts at the loss.
  EXPECT_EQ(world_.trainers_device().copies_added(), copies_here + 1);
  EXPECT_EQ(world_.GradientBytesLent(), kBytes);
  EXPECT_TRUE(AllAre(6, step.Gradient(w)));
}

TEST_P(LentGradientsTest, LoansEndWithTheContext) {
  const RRef w = world_.Make("w", 3), b = world_.Make("b", 4);
  const size_t used = world_.trainers_device().used_bytes();
  {
    Step step(world_);
    const Variable loss = Add(SumOfSquares(step.Fetch(w)), SumOfSquares(step.Fetch(b)));
    ASSERT_TRUE(step.Backward(loss).ok());
    EXPECT_EQ(world_.GradientBytesLent(), 2 * kBytes);
    EXPECT_TRUE(AllAre(8, step.Gradient(b)));
  }
  world_.AwaitNothingLent();
  world_.AwaitNoGradientLent();
  while (world_.trainers_device().used_bytes() > used) std::this_thread::yield();
}

// The gradient of a sum is one number in memory, so it is made contiguous before it is lent.
TEST_P(LentGradientsTest, AGradientThatIsNotContiguousIsLent) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable loss = Sum(step.Fetch(w));
  ASSERT_TRUE(step.Backward(loss).ok());
  EXPECT_EQ(world_.GradientBytesLent(), kBytes);
  EXPECT_TRUE(AllAre(1, step.Gradient(w)));
}

// The owner adds up two gradients of one parameter that came in two messages. It must not write the
// sum into the first one, which is lent: that would end the process.
TEST_P(LentGradientsTest, TheGradientsOfTwoUsesAreAddedUp) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable once = step.Fetch(w), again = step.Fetch(w);
  ASSERT_TRUE(step.Backward(Add(SumOfSquares(once), Sum(again))).ok());
  EXPECT_TRUE(AllAre(7, step.Gradient(w)));
  world_.AwaitNoGradientLent();  // the context has only the sum
}

TEST_P(LentGradientsTest, TheGradientsOfSeveralPassesAreAddedUp) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  for (int pass = 1; pass <= 4; ++pass) {
    ASSERT_TRUE(step.Backward(SumOfSquares(step.Fetch(w))).ok());
    EXPECT_TRUE(AllAre(6.0f * static_cast<float>(pass), step.Gradient(w))) << pass;
  }
}

TEST_P(LentGradientsTest, SeveralContextsHaveGradientsOfTheirOwn) {
  const RRef w = world_.Make("w", 3);
  auto optimizer = Must(DistributedOptimizer::Create(*world_.trainer(), Sgd{0.5}, {w}));
  {
    Step first(world_), second(world_);
    ASSERT_TRUE(first.Backward(SumOfSquares(first.Fetch(w))).ok());
    ASSERT_TRUE(second.Backward(Sum(second.Fetch(w))).ok());
    EXPECT_EQ(world_.GradientBytesLent(), 2 * kBytes);
    EXPECT_TRUE(AllAre(6, first.Gradient(w)));
    EXPECT_TRUE(AllAre(1, second.Gradient(w)));
    ASSERT_TRUE(optimizer->Step(first.context()).ok());
    EXPECT_TRUE(AllAre(0, ElementsThere(world_.Pull(w))));
    ASSERT_TRUE(optimizer->Step(second.context()).ok());
    EXPECT_TRUE(AllAre(-0.5, ElementsThere(world_.Pull(w))));
  }
  world_.AwaitNoGradientLent();
}

// The gradient of the result of a program enters the owner's part of the graph.
TEST_P(LentGradientsTest, AGradientGoesThroughAProgramOfTheOwner) {
  const RRef w = world_.Make("w", 3), b = world_.Make("b", 2);
  {
    Step step(world_);
    const Variable loss = SumOfSquares(step.ProductThere(w, b));
    Settle();
    const size_t copies_there = world_.owners_device().copies_added();
    ASSERT_TRUE(step.Backward(loss).ok());
    EXPECT_EQ(world_.owners_device().copies_added(), copies_there);
    EXPECT_TRUE(AllAre(24, step.Gradient(w)));
    EXPECT_TRUE(AllAre(36, step.Gradient(b)));
  }
  world_.AwaitNoGradientLent();
}

TEST_P(LentGradientsTest, AGradientOfAParameterOnTheHostIsReadByItsStep) {
  CreateOptions options;
  options.requires_grad = true;
  const RRef w = Must(world_.trainer()->GetOrCreate("owner", "w", Full({kElements}, 3), options));
  auto optimizer = Must(DistributedOptimizer::Create(*world_.trainer(), Sgd{0.5}, {w}));
  Step step(world_);
  ASSERT_TRUE(step.Backward(SumOfSquares(step.Fetch(w))).ok());
  ASSERT_TRUE(optimizer->Step(step.context()).ok());
  EXPECT_TRUE(AllAre(0, ElementsThere(Must(world_.trainer()->Pull({w}))[0].elements)));
}

// Whether or not gradients are lent, they are the same bits.
TEST_P(LentGradientsTest, GradientsAreThoseOfWorkersThatShareNothing) {
  World other(Sharing(), /*trainer_shares=*/false, true, GetParam());
  const auto gradient = [](World& world) {
    const RRef w = world.Make("w", 0.1), b = world.Make("b", 0.7);
    Step step(world);
    const Variable product = step.ProductThere(w, b), fetched = step.Fetch(w);
    const Variable loss = Sum(Mul(Mul(product, fetched), step.Fetch(w)));
    EXPECT_TRUE(step.Backward(loss).ok());
    EXPECT_TRUE(step.Backward(Sum(Mul(step.Fetch(w), step.Fetch(b)))).ok());
    return std::pair(step.Gradient(w), step.Gradient(b));
  };
  const auto lent = gradient(world_), copied = gradient(other);
  EXPECT_EQ(other.GradientBytesLent(), 0);
  EXPECT_TRUE(lent.first == copied.first);
  EXPECT_TRUE(lent.second == copied.second);
}

TEST_P(LentGradientsTest, SmallGradientsAreCopiedBesideLentOnes) {
  const RRef w = world_.Make("w", 3);
  CreateOptions options;
  options.requires_grad = true;
  options.device = "emu:0";
  const RRef small = Must(world_.trainer()->GetOrCreate("owner", "s", Full({5}, 4), options));
  const RRef middle = Must(world_.trainer()->GetOrCreate("owner", "m", Full({9000}, 5), options));
  CallOptions there = world_.there();
  Context context = Must(world_.trainer()->NewContext());
  there.context = &context;
  const Values all = Must(world_.trainer()->ToHere({small, w, middle}, there));
  const auto squares = [&all](size_t i) { return SumOfSquares(*all[i].As<Variable>()); };
  ASSERT_TRUE(context.Backward({Add(Add(squares(0), squares(1)), squares(2))}).ok());
  EXPECT_EQ(world_.GradientBytesLent(), kBytes);
  EXPECT_TRUE(AllAre(8, Elements(Must(context.Gradient(small)))));
  EXPECT_TRUE(AllAre(6, Elements(Must(context.Gradient(w)))));
  EXPECT_TRUE(AllAre(10, Elements(Must(context.Gradient(middle)))));
}

TEST_P(LentGradientsTest, TheStatusSaysThatGradientsAreLent) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  ASSERT_TRUE(step.Backward(SumOfSquares(step.Fetch(w))).ok());
  EXPECT_EQ(world_.HowGradientsAreRead(),
            absl::StrCat("its gradients in place; its process has borrowed ", kBytes,
                         " bytes in 1 blocks"));
}

// The owner must not see the message before the gradient has been written.
TEST_P(LentGradientsTest, AGradientIsSentWhenTheWorkThatWritesItIsDone) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable here = step.Fetch(w);
  const Tensor half = OnTheDevice(3);
  Settle();
  absl::Status back;
  std::atomic<bool> returned{false};
  std::thread backward;
  {
    const testing::Stall stall(world_.trainers_device());
    const Tensor gradient = Must(ops::Add(half, half));
    backward = std::thread([&, gradient] {
      back = step.context().BackwardFrom({here}, {gradient});
      returned = true;
    });
    // Until the trainer waits for the device, or has not waited for it.
    while (world_.trainers_device().scheduler().waiting() == 0 && !returned)
      std::this_thread::yield();
    // The owner has answered what it was sent before.
    Must(world_.trainer()->GetOrCreate("owner", "small", Full({1}, 1), CreateOptions()));
    EXPECT_FALSE(returned);
    for (const auto& context : world_.host().owner().runtime().autograd().Contexts())
      EXPECT_EQ(context->stats().gradients, 0);
    EXPECT_EQ(world_.host().owner().runtime().autograd().stats().running_passes, 0);
    EXPECT_EQ(world_.GradientBytesLent(), kBytes);
  }
  backward.join();
  ASSERT_TRUE(back.ok()) << back;
  EXPECT_TRUE(AllAre(6, step.Gradient(w)));
}

// The threads that read the network never wait for a device.
TEST_P(LentGradientsTest, AFetchOfAGradientOnADeviceWaitsOnTheExecutor) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  ASSERT_TRUE(step.Backward(SumOfSquares(step.Fetch(w))).ok());
  Settle();
  std::vector<float> gradient;
  std::thread fetch;
  {
    const testing::Stall stall(world_.owners_device());
    fetch = std::thread([&] { gradient = step.Gradient(w); });
    while (world_.owners_device().scheduler().waiting() == 0) std::this_thread::yield();
    EXPECT_EQ(world_.host().owner().runtime().executor_stats().blocked, 1);
  }
  fetch.join();
  EXPECT_TRUE(AllAre(6, gradient));
}

TEST_P(LentGradientsTest, ADeviceThatIsLostFailsThePassAndEndsItsLoans) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable here = step.Fetch(w);
  const Tensor gradient = OnTheDevice(6);
  Settle();
  absl::Status back;
  std::atomic<bool> returned{false};
  std::thread backward;
  {
    const testing::Stall stall(world_.trainers_device());
    backward = std::thread([&] {
      back = step.context().BackwardFrom({here}, {gradient});
      returned = true;
    });
    while (world_.GradientBytesLent() == 0 && !returned) std::this_thread::yield();
    EXPECT_FALSE(returned);
    world_.trainers_device().Lose("a test");
  }
  backward.join();
  EXPECT_EQ(back.code(), absl::StatusCode::kUnavailable) << back;
  EXPECT_THAT(std::string(back.message()), HasSubstr("error on trainer"));
  EXPECT_THAT(std::string(back.message()), HasSubstr("a test"));
  world_.AwaitNoGradientLent();
}

// Without an event nobody would know when the gradient is there.
TEST_P(LentGradientsTest, AnEventThatIsRefusedFailsThePass) {
  const RRef w = world_.Make("w", 3);
  Step step(world_);
  const Variable loss = SumOfSquares(step.Fetch(w));
  Settle();
  world_.trainers_device().RefuseEvent(1);
  EXPECT_FALSE(step.Backward(loss).ok());
  world_.AwaitNoGradientLent();
  ASSERT_TRUE(step.Backward(SumOfSquares(step.Fetch(w))).ok());
  EXPECT_TRUE(AllAre(6, step.Gradient(w)));
}

TEST_P(LentGradientsTest, WhatIsAboveTheBoundsIsCopied) {
  constexpr size_t kBudget = size_t{64} << 20;
  constexpr size_t kMost = kBudget / device_loans::Lender::kLentFraction / kBytes;
  const RRef w = world_.Make("w", 3);
  std::vector<std::unique_ptr<Step>> steps;
  for (size_t i = 0; i <= kMost; ++i) {
    steps.push_back(std::make_unique<Step>(world_));
    ASSERT_TRUE(steps.back()->Backward(SumOfSquares(steps.back()->Fetch(w))).ok()) << i;
  }
  EXPECT_EQ(world_.GradientBytesLent(), kMost * kBytes);
  for (const auto& step : steps) EXPECT_TRUE(AllAre(6, step->Gradient(w)));
  steps.clear();
  world_.AwaitNoGradientLent();
  Step again(world_);
  ASSERT_TRUE(again.Backward(SumOfSquares(again.Fetch(w))).ok());
  EXPECT_EQ(world_.GradientBytesLent(), kBytes);
}

// ---- workers that share nothing

void ExpectCopied(World& world) {
  const RRef w = world.Make("w", 3);
  Step step(world);
  ASSERT_TRUE(step.Backward(SumOfSquares(step.Fetch(w))).ok());
  EXPECT_EQ(world.GradientBytesLent(), 0);
  EXPECT_TRUE(AllAre(6, step.Gradient(w)));
}

TEST(CopiedGradientsTest, AnOwnerThatDoesNotShare) {
  World world(Sharing(false));
  ExpectCopied(world);
}

TEST(CopiedGradientsTest, ATrainerThatDoesNotShare) {
  World world(Sharing(), /*trainer_shares=*/false);
  ExpectCopied(world);
}

TEST(CopiedGradientsTest, AnOwnerThatIsReachedOverTheNetwork) {
  World world(Sharing(), /*trainer_shares=*/true, /*trainer_shares_memory=*/false);
  ExpectCopied(world);
}

}  // namespace
}  // namespace psd
