#include "core/dist_autograd/context.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/memory_budget.h"
#include "core/device/emulated/emulated_device.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/cast.h"
#include "gtest/gtest.h"
#include "tests/core/tensor/compare.h"
#include "tests/device/test_device.h"

namespace psd::dist_autograd {
namespace {

constexpr int kThreads = 4;
constexpr int kAdds = 200;

// Runs `add` on several threads, many times on each.
template <typename Function>
void FromManyThreads(const Function& add) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kAdds; ++i) EXPECT_TRUE(add().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

LeafInfo Leaf(uint64_t version) {
  return {{2, 1}, Shape{2}, DType::kF32, version};
}

TEST(ContextStateTest, GradientsThatArriveTogetherAllCount) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  FromManyThreads([&] { return context.Accumulate(Leaf(5), Tensor::Of<float>({2}, {1, 2})); });
  Tensor sum = context.Gradient({2, 1})->gradient;
  EXPECT_EQ(sum.data<float>()[0], kThreads * kAdds);
  EXPECT_EQ(sum.data<float>()[1], 2 * kThreads * kAdds);
}

TEST(ContextStateTest, ALateNoticeAboutAnEarlierSessionChangesNothing) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  EXPECT_TRUE(context.AddCallee("b"));
  EXPECT_FALSE(context.AddCallee("b"));
  EXPECT_EQ(context.SessionOn("b").epoch, 0u);
  context.SetSession("b", {7, 2});
  context.LoseSession("b", {7, 1}, absl::AbortedError("the first"));
  context.LoseSession("c", {7, 2}, absl::AbortedError("no callee"));
  EXPECT_TRUE(context.usable().ok());
  context.SetSession("b", {7, 3});
  EXPECT_EQ(context.SessionOn("b"), (rref::SessionKey{7, 2}));
  context.LoseSession("b", {7, 2}, absl::AbortedError("the second"));
  EXPECT_EQ(context.usable().message(), "the second");
}

TEST(ContextStateTest, ASessionThatEndsBeforeTheFirstAnswerTakesTheContextAlong) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  context.AddCallee("b");
  context.LoseSession("b", {7, 1}, absl::AbortedError("the first"));
  EXPECT_FALSE(context.usable().ok());
}

// A reader of the gradients shares them until they change.
TEST(ContextStateTest, NothingAddedChangesNothing) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  ASSERT_TRUE(context.Accumulate(Leaf(5), Tensor::Of<float>({2}, {1, 2})).ok());
  const auto before = context.Gradients();
  ASSERT_TRUE(context.AccumulateAll({}, {}).ok());
  EXPECT_EQ(context.Gradients(), before);
}

TEST(ContextStateTest, FirstGradientsMayBeSparseInPart) {
  const auto leaf = [](uint64_t key) { return LeafInfo{{2, key}, Shape{2, 1}, DType::kF32, key}; };
  const auto dense = [&](uint64_t key) {
    return std::make_pair(leaf(key), Tensor::Of<float>({2, 1}, {1, 1}));
  };
  const auto sparse = [&](uint64_t key) {
    return std::make_pair(leaf(key), *SparseTensor::Create({2, 1}, Tensor::Of<int64_t>({1, 1}, {1}),
                                                           Tensor::Of<float>({1, 1}, {1})));
  };
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  ASSERT_TRUE(context.AccumulateAll({dense(6), dense(4)}, {sparse(9), sparse(5), sparse(1)}).ok());
  std::vector<std::pair<uint64_t, bool>> found;  // key, dense
  context.Gradients()->ForEach([&](const LeafGradient& each) {
    EXPECT_EQ(each.version.oldest(), each.key.counter);
    found.emplace_back(each.key.counter, each.gradient.defined());
  });
  const std::vector<std::pair<uint64_t, bool>> all = {
      {1, false}, {4, true}, {5, false}, {6, true}, {9, false}};
  EXPECT_EQ(found, all);
  // A dense and a sparse gradient of one leaf make a dense sum.
  ContextState mixed({1, 2}, ids);
  ASSERT_TRUE(mixed.AccumulateAll({dense(4)}, {sparse(4), sparse(5)}).ok());
  EXPECT_EQ(mixed.Gradient({2, 4})->gradient.data<float>()[1], 2);
  EXPECT_FALSE(mixed.Gradient({2, 5})->gradient.defined());
}

TEST(ContextStateTest, GradientsAreSortedByKeyInWhateverOrderTheyCome) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  const auto add = [&](uint64_t key) {
    const LeafInfo leaf{{2, key}, Shape{1}, DType::kF32, key};
    return context.Accumulate(leaf, Tensor::Of<float>({1}, {static_cast<float>(key)}));
  };
  for (uint64_t key : {3, 5, 1, 4, 9, 5, 1, 2, 8}) ASSERT_TRUE(add(key).ok());
  std::vector<std::pair<uint64_t, float>> found;
  context.Gradients()->ForEach([&](const LeafGradient& each) {
    found.emplace_back(each.key.counter, each.gradient.data<float>()[0]);
  });
  const std::vector<std::pair<uint64_t, float>> sums = {{1, 2},  {2, 2}, {3, 3}, {4, 4},
                                                        {5, 10}, {8, 8}, {9, 9}};
  EXPECT_EQ(found, sums);
  EXPECT_EQ(context.stats().gradients, sums.size());
  EXPECT_EQ(context.stats().gradient_bytes, sums.size() * sizeof(float));
  EXPECT_EQ(context.Gradient({2, 2})->version.oldest(), 2u);
  EXPECT_FALSE(context.Gradient({2, 6}).ok());
}

TEST(ContextStateTest, ASumIsOnTheDeviceOfItsFirstGradientIfThereIsRoom) {
  const std::shared_ptr<EmulatedDevice> device = testing::NewTestDevice(/*seed=*/0);
  const Tensor here = Tensor::Of<float>({2}, {1, 2}), there = *CopyTo(device.get(), here);
  IdSource ids(1);
  for (const Tensor& next : {here, there}) {
    ContextState context({1, 1}, ids);
    ASSERT_TRUE(context.Accumulate(Leaf(5), there).ok());
    ASSERT_TRUE(context.Accumulate(Leaf(5), next).ok());
    EXPECT_EQ(context.Gradient({2, 1})->gradient.device(), device.get());
    device->FailAllocation(1);
    ASSERT_TRUE(context.Accumulate(Leaf(5), next).ok());
    const Tensor sum = context.Gradient({2, 1})->gradient;
    ASSERT_TRUE(sum.OnHost());
    EXPECT_TRUE(ops::Equal(sum, Tensor::Of<float>({2}, {3, 6})));
  }
}

TEST(ContextStateTest, AContextKnowsThatItHasGradientsOnDevices) {
  const std::shared_ptr<EmulatedDevice> device = testing::NewTestDevice(/*seed=*/0);
  const Tensor here = Tensor::Of<float>({2}, {1, 2}), there = *CopyTo(device.get(), here);
  IdSource ids(1);
  ContextState first({1, 1}, ids), later({1, 2}, ids);
  ASSERT_TRUE(first.Accumulate(Leaf(5), there).ok());
  EXPECT_TRUE(first.HasDeviceGradients());
  ASSERT_TRUE(later.Accumulate(Leaf(5), here).ok());
  EXPECT_FALSE(later.HasDeviceGradients());
  ASSERT_TRUE(later.Accumulate(Leaf(5), there).ok());
  EXPECT_FALSE(later.HasDeviceGradients()) << "the sum is on the host";
  ASSERT_TRUE(later.Accumulate({{2, 2}, Shape{2}, DType::kF32, 5}, there).ok());
  EXPECT_TRUE(later.HasDeviceGradients());
}

TEST(ContextStateTest, HalvesAreAddedInFloats) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    IdSource ids(1);
    ContextState context({1, 1}, ids);
    const LeafInfo leaf{{2, 1}, Shape{2}, dtype, 5};
    const Tensor gradient = *ops::Cast(Tensor::Of<float>({2}, {1.5f, -3}), dtype);
    // The first call adds two gradients of the same leaf, and the second call a third one.
    ASSERT_TRUE(context.AccumulateAll({{leaf, gradient}, {leaf, gradient}}, {}).ok());
    ASSERT_TRUE(context.Accumulate(leaf, gradient).ok());
    const Tensor sum = context.Gradient(leaf.key)->gradient;
    EXPECT_EQ(sum.dtype(), dtype);
    EXPECT_TRUE(ops::Equal(*ops::Cast(sum, DType::kF32), Tensor::Of<float>({2}, {4.5f, -9})));
  }
}

TEST(ContextStateTest, ManySmallHalvesAreNotLost) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    IdSource ids(1);
    ContextState context({1, 1}, ids);
    const int count = dtype == DType::kF16 ? 4096 : 512;
    const LeafInfo leaf{{2, 1}, Shape{1}, dtype, 5};
    const Tensor one = *ops::Cast(Tensor::Of<float>({1}, {1}), dtype);
    for (int i = 0; i < count; ++i) ASSERT_TRUE(context.Accumulate(leaf, one).ok());
    const Tensor sum = context.Gradient(leaf.key)->gradient;
    EXPECT_EQ(sum.dtype(), dtype);
    EXPECT_EQ(ops::Cast(sum, DType::kF32)->data<float>()[0], count) << DTypeName(dtype);
    // A gradient with the dtype of the sum does not have the dtype of the leaf.
    EXPECT_FALSE(context.Accumulate(leaf, Tensor::Of<float>({1}, {1})).ok());
    EXPECT_EQ(ops::Cast(context.Gradient(leaf.key)->gradient, DType::kF32)->data<float>()[0],
              count);
  }
}

TEST(ContextStateTest, WhatCannotBeAddedLeavesEverythingAsItWas) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  const LeafInfo first{{2, 1}, Shape{1}, DType::kF32, 5}, second{{2, 2}, Shape{1}, DType::kF32, 5};
  const Tensor one = Tensor::Of<float>({1}, {1}), other = Tensor::Of<double>({1}, {1});
  ASSERT_TRUE(context.AccumulateAll({{first, one}, {second, one}}, {}).ok());
  EXPECT_EQ(context.AccumulateAll({{first, one}, {second, other}}, {}).code(),
            absl::StatusCode::kInvalidArgument);
  auto sparse = SparseTensor::Create(Shape{1}, Tensor::Of<int64_t>({1, 1}, {0}), other);
  ASSERT_TRUE(sparse.ok()) << sparse.status();
  EXPECT_EQ(context.AccumulateAll({{first, one}}, {{second, *sparse}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(context.Gradient(first.key)->gradient.data<float>()[0], 1);
  EXPECT_EQ(context.Gradient(second.key)->gradient.data<float>()[0], 1);
}

TEST(ContextStateTest, DAG_54_SoDoSparseAndDenseOnes) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  auto sparse =
      SparseTensor::Create(Shape{2}, Tensor::Of<int64_t>({1, 1}, {1}), Tensor::Of<float>({1}, {1}));
  ASSERT_TRUE(sparse.ok()) << sparse.status();
  FromManyThreads([&] {
    PSD_RETURN_IF_ERROR(context.AccumulateSparse(Leaf(5), *sparse));
    return context.Accumulate(Leaf(7), Tensor::Of<float>({2}, {1, 1}));
  });
  LeafGradient sum = *context.Gradient({2, 1});
  ASSERT_TRUE(sum.gradient.defined());
  EXPECT_EQ(sum.gradient.data<float>()[0], kThreads * kAdds);
  EXPECT_EQ(sum.gradient.data<float>()[1], 2 * kThreads * kAdds);
  EXPECT_EQ(sum.version.oldest(), 5u);
}

std::vector<LeafGradient> Keys(const std::vector<uint64_t>& sequences) {
  std::vector<LeafGradient> leaves;
  for (uint64_t sequence : sequences) leaves.emplace_back().key = {2, sequence};
  return leaves;
}

TEST(ContextStateTest, GradientsAreHandedOverOnce) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  EXPECT_TRUE(context.HandOver(Keys({1, 2})));
  EXPECT_FALSE(context.HandOver(Keys({3, 2}))) << "2 was handed over";
  EXPECT_TRUE(context.HandOver(Keys({3}))) << "it stayed when 2 was refused";
  context.TakeBack(Keys({1, 2}));
  EXPECT_TRUE(context.HandOver(Keys({2, 1})));
  EXPECT_FALSE(context.HandOver(Keys({3}))) << "only 1 and 2 were taken back";
}

TEST(ContextStateTest, OneOfManyThreadsGetsTheGradients) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  std::atomic<int> handed_over{0};
  std::atomic<uint64_t> claims{0};
  FromManyThreads([&] {
    // Four claims in a row, mostly of different threads, are for the same leaf.
    handed_over += context.HandOver(Keys({claims++ / kThreads})) ? 1 : 0;
    return absl::OkStatus();
  });
  EXPECT_EQ(handed_over, kAdds);
}

TEST(ContextStateTest, AnUnknownVersionHidesNoOlderOne) {
  IdSource ids(1);
  ContextState context({1, 1}, ids);
  for (uint64_t version : {7, 0, 5}) {
    ASSERT_TRUE(context.Accumulate(Leaf(version), Tensor::Of<float>({2}, {1, 1})).ok());
  }
  const ReadVersion read = context.Gradient({2, 1})->version;
  EXPECT_EQ(read.oldest(), 5u);
  EXPECT_TRUE(read.has_unknown());
}

class FullContextTest : public ::testing::Test {
 protected:
  FullContextTest() {
    for (auto more = budget_->essential()->Charge(4096); more.ok();
         more = budget_->essential()->Charge(4096))
      filled_.push_back(*std::move(more));
  }
  static LeafInfo LeafOf(uint64_t number) { return {{2, number}, Shape{2}, DType::kF32, 1}; }

  const std::shared_ptr<MemoryBudget> budget_ = MemoryBudget::Create(size_t{1} << 20);
  std::vector<MemoryCharge> filled_;
  IdSource ids_{1};
  ContextState context_{{1, 1}, ids_, budget_};
};

TEST_F(FullContextTest, TheFirstMessageAndGradientFindRoomWhateverOthersHold) {
  EXPECT_TRUE(context_.AddSend({LeafOf(1)}).ok());
  EXPECT_TRUE(context_.Accumulate(LeafOf(1), Tensor::Of<float>({2}, {1, 2})).ok());
}

TEST_F(FullContextTest, FurtherMessagesAreRefusedAndLeaveNothing) {
  size_t sends = 0;
  while (context_.AddSend({LeafOf(1)}).ok()) ASSERT_LE(++sends, 1000u);
  const auto refused = context_.AddSend({LeafOf(1)});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_EQ(context_.stats().sends, sends);
  filled_.clear();
  EXPECT_TRUE(context_.AddSend({LeafOf(1)}).ok());
}

TEST_F(FullContextTest, FurtherGradientsAreRefusedAndLeaveNothing) {
  const Tensor gradient = Tensor::Of<float>({2}, {1, 2});
  uint64_t leaves = 0;
  while (context_.Accumulate(LeafOf(leaves + 1), gradient).ok()) ASSERT_LE(++leaves, 1000u);
  EXPECT_EQ(context_.stats().gradients, leaves);
  EXPECT_TRUE(context_.Accumulate(LeafOf(1), gradient).ok()) << "a sum needs no entry";
  EXPECT_EQ(context_.Gradient({2, 1})->gradient.data<float>()[0], 2);
}

TEST_F(FullContextTest, WhatAContextHeldIsCreditedWithIt) {
  filled_.clear();
  {
    ContextState context({1, 2}, ids_, budget_);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(context.AddSend({LeafOf(1)}).ok());
    EXPECT_GT(budget_->transit()->used_bytes(), size_t{20'000});
  }
  EXPECT_EQ(budget_->transit()->used_bytes(), 0u);
}

}  // namespace
}  // namespace psd::dist_autograd
