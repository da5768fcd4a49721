#include "kernels/reduce.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/on_every_target.h"

namespace psd::kernels {
namespace {

template <typename T>
class ReduceTest : public ::testing::Test {};
using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ReduceTest, Floats);

// Returns small whole numbers, whose sum is the same in every order.
template <typename T>
std::vector<T> WholeNumbers(size_t count) {
  std::vector<T> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<T>(static_cast<int>(i * 7 % 23) - 11);
  return numbers;
}

TYPED_TEST(ReduceTest, SumAtEveryLengthAndOffset) {
  OnEveryTarget([] {
    for (size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{16}, size_t{33}, size_t{255},
                         size_t{1024}, size_t{1025}, size_t{5001}}) {
      for (size_t offset : kOffsets) {
        const std::vector<TypeParam> x = WholeNumbers<TypeParam>(count + offset);
        TypeParam expected = 0;
        for (size_t i = offset; i < x.size(); ++i) expected += x[i];
        EXPECT_EQ(Sum(x.data() + offset, count), expected) << count << " at " << offset;
      }
    }
  });
}

TYPED_TEST(ReduceTest, LongSumsStayAccurate) {
  const size_t count = 1'000'000;
  const std::vector<TypeParam> x(count, TypeParam(0.1));
  const double expected = double(TypeParam(0.1)) * count;
  const double tolerance = std::numeric_limits<TypeParam>::epsilon() * 20;
  OnEveryTarget([&] {
    EXPECT_NEAR(Sum(x.data(), count) / expected, 1, tolerance);
    TypeParam columns[4];
    SumColumns(x.data(), count / 4, 4, columns);
    // SumColumns adds 64 rows at a time, and then 3,907 of these sums.
    EXPECT_NEAR(columns[3] * 4 / expected, 1, tolerance * 100);
  });
}

TYPED_TEST(ReduceTest, SumColumns) {
  OnEveryTarget([] {
    for (size_t rows : {0, 1, 3, 64, 65, 200}) {
      for (size_t cols : kLengths) {
        const std::vector<TypeParam> x = WholeNumbers<TypeParam>(rows * cols);
        std::vector<TypeParam> out(cols + 1, TypeParam{-99});
        SumColumns(x.data(), rows, cols, out.data());
        for (size_t col = 0; col < cols; ++col) {
          TypeParam expected = 0;
          for (size_t row = 0; row < rows; ++row) expected += x[row * cols + col];
          ASSERT_EQ(out[col], expected) << rows << " x " << cols << " column " << col;
        }
        ASSERT_EQ(out[cols], TypeParam{-99});
      }
    }
  });
}

TYPED_TEST(ReduceTest, NanAndInfinityComeThrough) {
  OnEveryTarget([] {
    std::vector<TypeParam> x(50, 1);
    x[17] = std::numeric_limits<TypeParam>::infinity();
    EXPECT_EQ(Sum(x.data(), x.size()), x[17]);
    x[49] = std::numeric_limits<TypeParam>::quiet_NaN();
    EXPECT_TRUE(std::isnan(Sum(x.data(), x.size())));
  });
}

TEST(IntegerSumTest, WrapsAround) {
  const int32_t x[] = {std::numeric_limits<int32_t>::max(), 1, 5, 5};
  EXPECT_EQ(Sum(x, 2), std::numeric_limits<int32_t>::min());
  int32_t columns[2];
  SumColumns(x, 2, 2, columns);
  EXPECT_EQ(columns[0], std::numeric_limits<int32_t>::min() + 4);
  EXPECT_EQ(columns[1], 6);
  const int64_t y[] = {1, 2, 3};
  EXPECT_EQ(Sum(y, 3), 6);
}

TEST(ArgMaxTest, FirstOfEqualsAndNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float x[] = {1, 5, 5, 2};
  EXPECT_EQ(ArgMax(x, 4, 1), 1u);
  EXPECT_EQ(ArgMax(x, 2, 2), 1u);
  const float with_nan[] = {1, nan, 7, nan};
  EXPECT_EQ(ArgMax(with_nan, 4, 1), 1u);
  const float nan_first[] = {nan, 7};
  EXPECT_EQ(ArgMax(nan_first, 2, 1), 0u);
}

}  // namespace
}  // namespace psd::kernels
