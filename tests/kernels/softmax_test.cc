#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/on_every_target.h"

namespace psd::kernels {
namespace {

template <typename T>
class SoftmaxTest : public ::testing::Test {
 protected:
  static constexpr double kTolerance = sizeof(T) == 4 ? 2e-6 : 1e-14;
  static constexpr size_t kRows = 3;
};
using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SoftmaxTest, Floats);

template <typename T>
std::vector<T> Logits(size_t count) {
  std::vector<T> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = static_cast<T>(double(i * 37 % 41) * 0.3 - 5);
  return x;
}

// Computes the log-softmax of one row with plain loops.
template <typename T>
std::vector<double> Reference(const T* x, size_t cols) {
  double sum = 0;
  const double most = *std::max_element(x, x + cols);
  for (size_t i = 0; i < cols; ++i) sum += std::exp(double(x[i]) - most);
  std::vector<double> y(cols);
  for (size_t i = 0; i < cols; ++i) y[i] = double(x[i]) - most - std::log(sum);
  return y;
}

TYPED_TEST(SoftmaxTest, MatchesTheReferenceAtEveryWidth) {
  using T = TypeParam;
  OnEveryTarget([&] {
    for (size_t cols : kLengths) {
      if (cols == 0) continue;
      const std::vector<T> x = Logits<T>(this->kRows * cols);
      std::vector<T> soft(x.size()), log_soft(x.size());
      Softmax(x.data(), this->kRows, cols, soft.data());
      LogSoftmax(x.data(), this->kRows, cols, log_soft.data());
      for (size_t row = 0; row < this->kRows; ++row) {
        const std::vector<double> expected = Reference(x.data() + row * cols, cols);
        for (size_t col = 0; col < cols; ++col) {
          ASSERT_NEAR(log_soft[row * cols + col], expected[col], 8 * this->kTolerance);
          ASSERT_NEAR(soft[row * cols + col], std::exp(expected[col]), this->kTolerance);
        }
      }
    }
  });
}

TYPED_TEST(SoftmaxTest, Gradients) {
  using T = TypeParam;
  OnEveryTarget([&] {
    for (size_t cols : {size_t{1}, size_t{10}, size_t{17}, size_t{40}}) {
      const std::vector<T> x = Logits<T>(this->kRows * cols);
      std::vector<T> g(x.size()), soft(x.size()), log_soft(x.size());
      for (size_t i = 0; i < g.size(); ++i) g[i] = static_cast<T>(double(i % 7) * 0.25 - 0.5);
      Softmax(x.data(), this->kRows, cols, soft.data());
      LogSoftmax(x.data(), this->kRows, cols, log_soft.data());
      std::vector<T> of_soft(x.size()), of_log(x.size());
      SoftmaxGradient(soft.data(), g.data(), this->kRows, cols, of_soft.data());
      LogSoftmaxGradient(log_soft.data(), g.data(), this->kRows, cols, of_log.data());
      for (size_t row = 0; row < this->kRows; ++row) {
        double dot = 0, sum = 0;
        for (size_t i = row * cols; i < (row + 1) * cols; ++i) {
          dot += double(g[i]) * double(soft[i]);
          sum += double(g[i]);
        }
        for (size_t i = row * cols; i < (row + 1) * cols; ++i) {
          ASSERT_NEAR(of_soft[i], double(soft[i]) * (double(g[i]) - dot), this->kTolerance);
          ASSERT_NEAR(of_log[i], double(g[i]) - std::exp(double(log_soft[i])) * sum,
                      4 * this->kTolerance);
        }
      }
    }
  });
}

TYPED_TEST(SoftmaxTest, CrossEntropy) {
  using T = TypeParam;
  OnEveryTarget([&] {
    const size_t cols = 10;
    const std::vector<T> x = Logits<T>(this->kRows * cols);
    const int64_t labels[] = {9, 0, 4};
    std::vector<T> y(x.size()), dx(x.size());
    LogSoftmax(x.data(), this->kRows, cols, y.data());
    const double loss = MeanNegativeLogLikelihood(y.data(), labels, this->kRows, cols);
    EXPECT_NEAR(loss, -(double(y[9]) + double(y[10]) + double(y[24])) / 3, this->kTolerance);
    CrossEntropyGradient(y.data(), labels, T{0.5}, this->kRows, cols, dx.data());
    for (size_t i = 0; i < dx.size(); ++i) {
      const bool hit = i == 9 || i == 10 || i == 24;
      EXPECT_NEAR(dx[i], 0.5 * (std::exp(double(y[i])) - (hit ? 1 : 0)), this->kTolerance);
    }
  });
}

TYPED_TEST(SoftmaxTest, LargeAndInfiniteNumbers) {
  using T = TypeParam;
  const T inf = std::numeric_limits<T>::infinity();
  const T nan = std::numeric_limits<T>::quiet_NaN();
  OnEveryTarget([&] {
    const T x[] = {T{10000}, T{9999}, -inf, T{-10000}, T{1}, nan,
                   T{2},     T{3},    T{1}, inf,       T{2}, T{3}};
    T y[12], log_y[12];
    Softmax(x, 3, 4, y);
    LogSoftmax(x, 3, 4, log_y);
    EXPECT_NEAR(y[0], 1 / (1 + std::exp(-1.0)), this->kTolerance);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], 0);
    EXPECT_EQ(log_y[2], -inf);
    EXPECT_NEAR(log_y[3], -20000.3132616875, 0.01);
    for (int i = 4; i < 12; ++i) EXPECT_TRUE(std::isnan(y[i]) && std::isnan(log_y[i])) << i;
  });
}

}  // namespace
}  // namespace psd::kernels
