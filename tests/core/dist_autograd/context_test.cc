#include "core/dist_autograd/context.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

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
  EXPECT_EQ(sum.leaf.version, 5u) << "the oldest";
}

}  // namespace
}  // namespace psd::dist_autograd
