#include "kernels/matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace psd::kernels {
namespace {

template <typename T>
class MatmulTest : public ::testing::Test {};
using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MatmulTest, Floats);

// Returns small whole numbers, whose products are exact in any order of summation.
template <typename T>
std::vector<T> Matrix(int64_t rows, int64_t stride, int seed) {
  std::vector<T> x(static_cast<size_t>(rows * stride));
  for (size_t i = 0; i < x.size(); ++i) x[i] = T(int(i * 31 + size_t(seed)) % 17 - 8);
  return x;
}

template <typename T>
T At(const MatrixView<T>& view, int64_t row, int64_t col) {
  return view.transposed ? view.data[col * view.stride + row] : view.data[row * view.stride + col];
}

template <typename T>
void Check(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, T beta,
           int64_t gap) {
  const int64_t a_stride = std::max<int64_t>(1, transpose_a ? m : k) + gap;
  const int64_t b_stride = std::max<int64_t>(1, transpose_b ? k : n) + gap;
  const std::vector<T> a = Matrix<T>(transpose_a ? k : m, a_stride, 3);
  const std::vector<T> b = Matrix<T>(transpose_b ? n : k, b_stride, 5);
  const MatrixView<T> a_view{a.data(), a_stride, transpose_a};
  const MatrixView<T> b_view{b.data(), b_stride, transpose_b};
  std::vector<T> c(static_cast<size_t>(m * n) + 1, beta == 0 ? std::nan("") : T{2});
  Gemm(m, n, k, a_view, b_view, beta, c.data());
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t col = 0; col < n; ++col) {
      T expected = beta == 0 ? T{0} : beta * T{2};
      for (int64_t i = 0; i < k; ++i) expected += At(a_view, row, i) * At(b_view, i, col);
      ASSERT_EQ(c[static_cast<size_t>(row * n + col)], expected)
          << m << " x " << n << " x " << k << " " << transpose_a << transpose_b;
    }
  }
  const T guard = c.back();
  ASSERT_TRUE(beta == 0 ? std::isnan(guard) : guard == T{2});
}

TYPED_TEST(MatmulTest, SizesTransposesStridesAndBeta) {
  for (int64_t m : {0, 1, 3, 17}) {
    for (int64_t n : {0, 1, 10, 33}) {
      for (int64_t k : {0, 1, 5, 40}) {
        for (int flags = 0; flags < 4; ++flags) {
          Check<TypeParam>(m, n, k, flags & 1, flags & 2, 0, flags * 3);
          Check<TypeParam>(m, n, k, flags & 1, flags & 2, 1, 0);
          Check<TypeParam>(m, n, k, flags & 1, flags & 2, 3, 1);
        }
      }
    }
  }
  Check<TypeParam>(128, 256, 84, false, true, 1, 0);
}

TYPED_TEST(MatmulTest, NanAndInfinityComeThrough) {
  const TypeParam inf = std::numeric_limits<TypeParam>::infinity();
  const TypeParam a[] = {inf, 1, 0, std::numeric_limits<TypeParam>::quiet_NaN()};
  const TypeParam b[] = {1, 2, 3, 4};
  TypeParam c[4];
  Gemm(2, 2, 2, MatrixView<TypeParam>{a, 2, false}, MatrixView<TypeParam>{b, 2, false},
       TypeParam{0}, c);
  EXPECT_EQ(c[0], inf);
  EXPECT_TRUE(std::isnan(c[2]));
  EXPECT_TRUE(std::isnan(c[3]));
}

TYPED_TEST(MatmulTest, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      for (int repeat = 0; repeat < 5; ++repeat) Check<TypeParam>(33, 20, 47, false, true, 0, 0);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace psd::kernels
