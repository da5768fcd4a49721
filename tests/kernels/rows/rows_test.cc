// Compares grouping, gathering and summing of rows with plain loops.

#include "kernels/rows/rows.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/on_every_target.h"

namespace psd::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void ExpectGrouped(const std::vector<int64_t>& ids) {
  std::map<int64_t, std::vector<uint32_t>> expected;
  for (uint32_t i = 0; i < ids.size(); ++i) expected[ids[i]].push_back(i);
  RowGroups groups;
  GroupRows(ids.data(), ids.size(), &groups);
  ASSERT_EQ(groups.ids.size(), expected.size());
  ASSERT_EQ(groups.begins.size(), expected.size() + 1);
  size_t k = 0;
  for (const auto& [id, positions] : expected) {
    EXPECT_EQ(groups.ids[k], id);
    const auto begin = groups.positions.begin() + groups.begins[k];
    EXPECT_EQ(std::vector<uint32_t>(begin, groups.positions.begin() + groups.begins[k + 1]),
              positions);
    ++k;
  }
}

TEST(GroupRowsTest, NoIds) {
  RowGroups groups;
  GroupRows(nullptr, 0, &groups);
  EXPECT_THAT(groups.ids, IsEmpty());
  EXPECT_THAT(groups.begins, ElementsAre(0));
}

TEST(GroupRowsTest, RepeatedIdsKeepTheOrderOfTheirPositions) {
  RowGroups groups;
  const int64_t ids[] = {7, 3, 7, 0, 3, 7};
  GroupRows(ids, 6, &groups);
  EXPECT_THAT(groups.ids, ElementsAre(0, 3, 7));
  EXPECT_THAT(groups.begins, ElementsAre(0, 1, 3, 6));
  EXPECT_THAT(groups.positions, ElementsAre(3, 1, 4, 0, 2, 5));
}

TEST(GroupRowsTest, AscendingIdsAreGroupsAsTheyStand) {
  ExpectGrouped({4});
  ExpectGrouped({0, 1, 5, 900, INT64_MAX});
  ExpectGrouped({0, 1, 5, 5});
}

TEST(GroupRowsTest, EveryWayOfSortingEqualsAMap) {
  std::mt19937_64 random(1);
  for (size_t count : {1, 2, 100, 255, 256, 1000, 5000}) {
    for (int64_t range :
         {int64_t{1}, int64_t{10}, int64_t{2048}, int64_t{1} << 20, int64_t{1} << 40, INT64_MAX}) {
      std::vector<int64_t> ids(count);
      for (int64_t& id : ids) id = static_cast<int64_t>(random() >> 1) % range;
      ids.push_back(ids[0]);
      ExpectGrouped(ids);
    }
  }
}

TEST(GatherRowsTest, CopiesRowsOfAStridedTable) {
  std::vector<unsigned char> table(10 * 24);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<unsigned char>(i);
  const int64_t ids[] = {9, 0, 0, 4};
  std::vector<unsigned char> out(4 * 20, 255);
  GatherRows(reinterpret_cast<const std::byte*>(table.data()), 24, 20, ids, 4,
             reinterpret_cast<std::byte*>(out.data()));
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 20; ++j) EXPECT_EQ(out[i * 20 + j], table[ids[i] * 24 + j]);
}

template <typename T>
void ExpectSums(size_t width) {
  std::vector<int64_t> ids = {5, 1, 5, 5, 0, 1};
  std::vector<T> rows(ids.size() * width);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<T>(i % 97) / 4;
  std::vector<T> dense(6 * width), expected(6 * width);
  for (size_t i = 0; i < dense.size(); ++i) dense[i] = expected[i] = static_cast<T>(i);
  for (size_t i = 0; i < ids.size(); ++i)
    for (size_t j = 0; j < width; ++j) expected[ids[i] * width + j] += rows[i * width + j];
  RowGroups groups;
  GroupRows(ids.data(), ids.size(), &groups);
  AddRows(groups, rows.data(), width, dense.data());
  EXPECT_EQ(dense, expected);
  std::vector<T> sums(3 * width);
  SumRows(groups, rows.data(), width, width, sums.data());
  for (size_t j = 0; j < width; ++j) {
    EXPECT_EQ(sums[j], rows[4 * width + j]);
    EXPECT_EQ(sums[width + j], rows[width + j] + rows[5 * width + j]);
  }
  SumRows(groups, rows.data(), 0, width, sums.data());
  for (size_t j = 0; j < width; ++j) {
    EXPECT_EQ(sums[j], rows[j]);
    EXPECT_EQ(sums[2 * width + j], rows[j] + rows[j] + rows[j]);
  }
}

TEST(SumRowsTest, DuplicatesAreAddedOnceOnEveryInstructionSet) {
  OnEveryTarget([] {
    for (size_t width : kLengths) {
      ExpectSums<float>(width);
      ExpectSums<double>(width);
    }
  });
}

}  // namespace
}  // namespace psd::kernels
