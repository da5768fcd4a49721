#include "bench/rows_floors.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace psd::bench {
namespace {

constexpr size_t kWidth = static_cast<size_t>(kTableWidth);

TEST(RowsFloors, DoTheirMath) {
  std::vector<float> table(4 * kWidth, 1), sums(4 * kWidth, 0), rows(3 * kWidth, 0);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
  const std::vector<int64_t> ids = {3, 0, 3};
  RowsRead(table.data(), ids, rows.data());
  EXPECT_EQ(rows[1], table[3 * kWidth + 1]);
  EXPECT_EQ(rows[kWidth], table[0]);
  std::fill(rows.begin(), rows.end(), 1000.0f);
  RowsUpdate(table.data(), sums.data(), ids, rows.data());
  EXPECT_EQ(sums[3 * kWidth], 2e6f);
  EXPECT_EQ(sums[kWidth], 0);
  EXPECT_FLOAT_EQ(table[0], -1e-9f * 1000 * 1e6f);
}

TEST(RowsFloors, IdsAreSkewedAndInRange) {
  std::vector<int64_t> ids = SkewedIds();
  ASSERT_EQ(ids.size(), kTableIds);
  EXPECT_EQ(ids, SkewedIds());
  std::sort(ids.begin(), ids.end());
  EXPECT_GE(ids.front(), 0);
  EXPECT_LT(ids.back(), kTableRows);
  EXPECT_NEAR(static_cast<double>(ids[kTableIds / 2]), 1000, 200);
}

}  // namespace
}  // namespace psd::bench
