#include "kernels/optim/norm.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/convert.h"
#include "tests/kernels/on_every_target.h"

namespace psd::kernels {
namespace {

template <typename T>
void ExpectSum(size_t size, size_t offset) {
  std::vector<T> x(size + offset, Convert<T>(1e30f));
  double want = 0;
  for (size_t i = 0; i < size; ++i) {
    x[offset + i] = Convert<T>(static_cast<float>(i % 7) - 2.5f);
    want += std::pow(static_cast<double>(i % 7) - 2.5, 2);
  }
  EXPECT_DOUBLE_EQ(SumOfSquares(x.data() + offset, size), want) << size << " from " << offset;
}

TEST(SumOfSquares, EveryTypeLengthAndOffset) {
  OnEveryTarget([] {
    for (const size_t size : kLengths) {
      for (const size_t offset : kOffsets) {
        ExpectSum<float>(size, offset);
        ExpectSum<double>(size, offset);
        ExpectSum<Half>(size, offset);
        ExpectSum<BFloat16>(size, offset);
      }
    }
  });
}

template <typename T>
void ExpectFiniteIfAllAre(float largest) {
  std::vector<T> x(101, Convert<T>(largest));
  EXPECT_TRUE(std::isfinite(SumOfSquares(x.data(), x.size())));
  for (const size_t at : {size_t{0}, size_t{63}, x.size() - 1}) {
    x[at] = Convert<T>(-std::numeric_limits<float>::infinity());
    EXPECT_EQ(SumOfSquares(x.data(), x.size()), std::numeric_limits<double>::infinity());
    x[at] = Convert<T>(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isnan(SumOfSquares(x.data(), x.size())));
    x[at] = Convert<T>(largest);
  }
}

TEST(SumOfSquares, FiniteIfAndOnlyIfAllAre) {
  OnEveryTarget([] {
    ExpectFiniteIfAllAre<float>(std::numeric_limits<float>::max());
    ExpectFiniteIfAllAre<double>(std::numeric_limits<float>::max());
    ExpectFiniteIfAllAre<Half>(65504);
    ExpectFiniteIfAllAre<BFloat16>(3e38f);
  });
}

TEST(SumOfSquares, DoublesMayOverflow) {
  const double x[] = {1e200, 1};
  EXPECT_EQ(SumOfSquares(x, 2), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace psd::kernels
