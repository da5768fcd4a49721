#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/on_every_target.h"

namespace psd::kernels {
namespace {

template <typename T>
std::vector<T> Numbers(size_t count, double first, double step) {
  std::vector<T> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<T>(first + step * double(i));
  return numbers;
}

template <typename T>
T Reference(BinaryOp op, T a, T b) {
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSub:
      return a - b;
    case BinaryOp::kMul:
      return a * b;
    case BinaryOp::kDiv:
      return a / b;
  }
  return 0;
}

template <typename T>
double Reference(UnaryOp op, T number) {
  const double x = static_cast<double>(number);
  switch (op) {
    case UnaryOp::kNeg:
      return -x;
    case UnaryOp::kRelu:
      return x < 0 ? 0 : x;
    case UnaryOp::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case UnaryOp::kTanh:
      return std::tanh(x);
    case UnaryOp::kExp:
      return std::exp(x);
    case UnaryOp::kLog:
      return std::log(x);
    case UnaryOp::kSqrt:
      return std::sqrt(x);
  }
  return 0;
}

constexpr BinaryOp kBinaryOps[] = {BinaryOp::kAdd, BinaryOp::kSub, BinaryOp::kMul, BinaryOp::kDiv};
constexpr UnaryOp kUnaryOps[] = {UnaryOp::kNeg, UnaryOp::kRelu, UnaryOp::kSigmoid, UnaryOp::kTanh,
                                 UnaryOp::kExp, UnaryOp::kLog,  UnaryOp::kSqrt};

template <typename T>
class ElementwiseTest : public ::testing::Test {};
using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ElementwiseTest, Floats);

// Expects exact results, because IEEE defines each of them.
template <typename T>
void CheckBinary(BinaryOp op, size_t count, size_t offset, size_t a_step, size_t b_step) {
  const std::vector<T> a = Numbers<T>(count + offset + 1, -3.25, 0.5);
  const std::vector<T> b = Numbers<T>(count + offset + 1, 7.125, -0.37);
  std::vector<T> out(count + offset + 1, T{-99});
  Binary(op, a.data() + offset, a_step, b.data() + offset, b_step, out.data() + offset, count);
  for (size_t i = 0; i < count; ++i)
    ASSERT_EQ(out[offset + i], Reference(op, a[offset + i * a_step], b[offset + i * b_step]))
        << static_cast<int>(op) << " of " << count << " at " << i;
  ASSERT_EQ(out[offset + count], T{-99});
}

TYPED_TEST(ElementwiseTest, BinaryIsExactAtEveryLengthAndOffset) {
  OnEveryTarget([] {
    for (BinaryOp op : kBinaryOps) {
      for (size_t count : kLengths) {
        for (size_t offset : kOffsets) {
          CheckBinary<TypeParam>(op, count, offset, 1, 1);
          CheckBinary<TypeParam>(op, count, offset, 0, 1);
          CheckBinary<TypeParam>(op, count, offset, 1, 0);
        }
      }
    }
  });
}

TYPED_TEST(ElementwiseTest, OutputMayBeAnInput) {
  OnEveryTarget([] {
    std::vector<TypeParam> a = Numbers<TypeParam>(37, 1, 1);
    const std::vector<TypeParam> b = Numbers<TypeParam>(37, 5, 2);
    Binary(BinaryOp::kAdd, a.data(), 1, b.data(), 1, a.data(), a.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], TypeParam(6 + 3 * double(i)));
    Unary(UnaryOp::kNeg, a.data(), a.data(), a.size());
    EXPECT_EQ(a[36], TypeParam(-114));
  });
}

TYPED_TEST(ElementwiseTest, UnaryAtEveryLengthAndOffset) {
  const double tolerance = sizeof(TypeParam) == 4 ? 1e-6 : 4e-15;
  OnEveryTarget([&] {
    for (UnaryOp op : kUnaryOps) {
      const bool positive = op == UnaryOp::kLog || op == UnaryOp::kSqrt;
      for (size_t count : kLengths) {
        for (size_t offset : kOffsets) {
          const auto x = Numbers<TypeParam>(count + offset, positive ? 0.01 : -12.3, 0.251);
          std::vector<TypeParam> out(count + offset + 1, TypeParam{-99});
          Unary(op, x.data() + offset, out.data() + offset, count);
          for (size_t i = offset; i < offset + count; ++i) {
            const double expected = Reference(op, x[i]);
            ASSERT_NEAR(out[i], expected, tolerance * std::max(1e-3, std::fabs(expected)))
                << static_cast<int>(op) << " of " << x[i];
          }
          ASSERT_EQ(out[offset + count], TypeParam{-99});
        }
      }
    }
  });
}

TYPED_TEST(ElementwiseTest, SpecialNumbersPassAsIeeeHasThem) {
  using T = TypeParam;
  const T inf = std::numeric_limits<T>::infinity();
  const T nan = std::numeric_limits<T>::quiet_NaN();
  const T huge = std::numeric_limits<T>::max();
  const T tiny = std::numeric_limits<T>::min();
  const std::vector<T> x = {inf,   -inf,    nan,    T{0},    T{-0.0}, huge,  -huge,  tiny, T{-1},
                            T{89}, T{-104}, T{710}, T{-746}, T{88.5}, T{30}, T{-30}, T{1}};
  const double tolerance = sizeof(T) == 4 ? 2e-6 : 1e-14;
  OnEveryTarget([&] {
    for (UnaryOp op : kUnaryOps) {
      std::vector<T> out(x.size());
      Unary(op, x.data(), out.data(), x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        const T expected = static_cast<T>(Reference(op, x[i]));
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(out[i]))
              << static_cast<int>(op) << " of " << x[i] << ": " << out[i];
        } else if (std::isinf(expected)) {
          EXPECT_EQ(out[i], expected) << static_cast<int>(op) << " of " << x[i];
        } else {
          EXPECT_NEAR(out[i], expected, double(tiny) * 2 + tolerance * std::fabs(double(expected)))
              << static_cast<int>(op) << " of " << x[i];
        }
      }
    }
  });
}

TYPED_TEST(ElementwiseTest, Gradients) {
  using T = TypeParam;
  const std::vector<T> y = Numbers<T>(41, 0.02, 0.024);
  const std::vector<T> g = Numbers<T>(41, -3, 0.3);
  const double tolerance = sizeof(T) == 4 ? 1e-6 : 1e-14;
  OnEveryTarget([&] {
    std::vector<T> relu(41), sigmoid(41), tanh(41), sqrt(41);
    UnaryGradient(UnaryGradientOp::kRelu, y.data(), g.data(), relu.data(), 41);
    UnaryGradient(UnaryGradientOp::kSigmoid, y.data(), g.data(), sigmoid.data(), 41);
    UnaryGradient(UnaryGradientOp::kTanh, y.data(), g.data(), tanh.data(), 41);
    UnaryGradient(UnaryGradientOp::kSqrt, y.data(), g.data(), sqrt.data(), 41);
    for (size_t i = 0; i < 41; ++i) {
      EXPECT_EQ(relu[i], g[i]);
      EXPECT_NEAR(sigmoid[i], g[i] * y[i] * (1 - y[i]), tolerance);
      EXPECT_NEAR(tanh[i], g[i] * (1 - y[i] * y[i]), 4 * tolerance);
      EXPECT_NEAR(sqrt[i], g[i] / (2 * y[i]), 100 * tolerance);
    }
    const T edges[] = {T{0}, T{-1}, std::numeric_limits<T>::quiet_NaN()};
    const T ones[] = {1, 1, 1};
    T out[3];
    UnaryGradient(UnaryGradientOp::kRelu, edges, ones, out, 3);
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(out[1], 0);
    EXPECT_EQ(out[2], 1);
  });
}

TEST(IntegersTest, WrapAround) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const int64_t least = std::numeric_limits<int64_t>::min();
  const int64_t a[] = {most, least, 3};
  const int64_t b[] = {1, -1, -4};
  int64_t out[3];
  Binary(BinaryOp::kAdd, a, 1, b, 1, out, 3);
  EXPECT_EQ(out[0], least);
  EXPECT_EQ(out[1], most);
  Binary(BinaryOp::kSub, a, 1, b, 0, out, 3);
  EXPECT_EQ(out[1], most);
  Binary(BinaryOp::kMul, a, 1, b, 1, out, 3);
  EXPECT_EQ(out[1], least);
  EXPECT_EQ(out[2], -12);
  Negate(a, out, 3);
  EXPECT_EQ(out[1], least);
  const int32_t small[] = {std::numeric_limits<int32_t>::max()};
  int32_t small_out[1];
  Binary(BinaryOp::kMul, small, 1, small, 1, small_out, 1);
  EXPECT_EQ(small_out[0], 1);
  Negate(small, small_out, 1);
  EXPECT_EQ(small_out[0], -small[0]);
}

}  // namespace
}  // namespace psd::kernels
