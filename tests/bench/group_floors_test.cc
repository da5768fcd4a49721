#include "bench/group_floors.h"

#include "gtest/gtest.h"

namespace psd::bench {
namespace {

TEST(GroupFloorsTest, EveryRankHasTheSumOfAllInputs) {
  constexpr int kRanks = 3;
  constexpr size_t kElements = 16 * 1024;
  AllReduceFloor floor(kRanks, kElements);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < kElements; ++i)
      floor.input(rank).data()[i] = static_cast<float>(i) * static_cast<float>(rank + 1);
  }
  EXPECT_EQ(floor.Run(5).size(), 5u);
  for (int rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < kElements; ++i)
      ASSERT_EQ(floor.result(rank).data()[i], 6 * static_cast<float>(i)) << rank << " " << i;
  }
}

TEST(GroupFloorsTest, OneRankCopiesItsInput) {
  AllReduceFloor floor(1, 16);
  floor.input(0).data()[15] = 7;
  EXPECT_EQ(floor.Run(1).size(), 1u);
  EXPECT_EQ(floor.result(0).data()[15], 7);
}

}  // namespace
}  // namespace psd::bench
