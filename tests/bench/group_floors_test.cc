#include "bench/group_floors.h"

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace psd::bench {
namespace {

constexpr int kRanks = 3;
constexpr size_t kElements = size_t{1} << 20;  // so that parts take several messages of gRPC

std::unique_ptr<GroupFloor> Create(const std::string& task, const std::string& way, int ranks,
                                   size_t elements) {
  auto floor = GroupFloor::Create(task, way, ranks, elements);
  EXPECT_TRUE(floor.ok()) << floor.status();
  return *std::move(floor);
}

class GroupFloorsTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Ways, GroupFloorsTest, testing::Values("memory", "tcp", "grpc"));

TEST_P(GroupFloorsTest, EveryRankHasTheSumOfAllInputs) {
  const auto floor = Create("allreduce", GetParam(), kRanks, kElements);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < kElements; ++i)
      floor->floats().input(rank)[i] = static_cast<float>(i) * static_cast<float>(rank + 1);
  }
  EXPECT_EQ(floor->Run(5).size(), 5u);
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (size_t i = 0; i < kElements; ++i)
      ASSERT_EQ(floor->floats().result(rank)[i], 6 * static_cast<float>(i)) << rank << " " << i;
  }
}

TEST_P(GroupFloorsTest, OneRankCopiesItsInput) {
  const auto floor = Create("allreduce", GetParam(), 1, 16);
  floor->floats().input(0)[15] = 7;
  EXPECT_EQ(floor->Run(1).size(), 1u);
  EXPECT_EQ(floor->floats().result(0)[15], 7);
}

// Equal results show that every part has come to every rank.
TEST_P(GroupFloorsTest, StepsEndWithTheSameFloatsOnAllRanks) {
  for (const std::string task : {"ddp_step", "zero_step"}) {
    const auto floor = Create(task, GetParam(), kRanks, kElements);
    const RankFloats& floats = floor->floats();
    for (size_t rank = 0; rank < kRanks; ++rank) {
      for (size_t i = 0; i < kElements; ++i) {
        floats.input(rank)[i] = static_cast<float>(rank + 1);
        floats.result(rank)[i] = -1;
      }
    }
    EXPECT_EQ(floor->Run(2).size(), 2u);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      for (size_t i = 0; i < kElements; ++i) {
        ASSERT_NE(floats.result(rank)[i], -1) << task << " " << rank << " " << i;
        ASSERT_EQ(floats.result(rank)[i], floats.result(0)[i]) << task << " " << rank << " " << i;
      }
    }
  }
}

TEST(GroupFloorTasksTest, AnUnknownTaskOrWayIsRefused) {
  EXPECT_EQ(GroupFloor::Create("sleep", "memory", 2, 16).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GroupFloor::Create("allreduce", "pigeon", 2, 16).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::bench
