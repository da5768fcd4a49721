#include "bench/stats.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::bench {
namespace {

TEST(Stats, Quantiles) {
  const std::vector<double> values = {4, 1, 3, 2, 5};
  EXPECT_DOUBLE_EQ(Median(values), 3);
  EXPECT_DOUBLE_EQ(Quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(Quantile(values, 1), 5);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.625), 3.5);
  EXPECT_DOUBLE_EQ(Median({1, 2}), 1.5);
  EXPECT_DOUBLE_EQ(Median({7}), 7);
}

TEST(Stats, SpreadIsTheMiddleHalf) {
  EXPECT_DOUBLE_EQ(Spread({7}), 0);
  EXPECT_DOUBLE_EQ(Spread({1, 2, 3, 4, 5}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(Spread({3, 3, 3, 3, 1000}), 0);
}

TEST(Stats, RatiosGoBlockByBlock) {
  EXPECT_THAT(Ratios({2, 9}, {4, 3}), testing::ElementsAre(0.5, 3));
}

}  // namespace
}  // namespace psd::bench
