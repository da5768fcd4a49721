#include "client/zero/partition.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::zero {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PartitionGroup Group(const std::vector<int64_t>& loads, int64_t rows = 1) {
  PartitionGroup group;
  for (int64_t load : loads) group.push_back({load, rows});
  return group;
}

Partition Make(const std::vector<PartitionGroup>& groups, int ranks,
               const PartitionOptions& options = {}) {
  auto partition = MakePartition(groups, ranks, options);
  EXPECT_TRUE(partition.ok()) << partition.status();
  return partition.ok() ? *std::move(partition) : Partition{};
}

// Returns the parameters of a group that a rank has, in the order in which they were given to it.
std::vector<size_t> Indices(const Partition& partition, size_t rank, size_t group = 0) {
  std::vector<size_t> indices;
  for (const PartitionPart& part : partition.parts[rank][group]) indices.push_back(part.parameter);
  return indices;
}

BucketPartition Shard(const std::vector<Bucket>& buckets, int ranks,
                      const ShardBucketsOptions& options = {}) {
  auto given = ShardBuckets(buckets, ranks, options);
  EXPECT_TRUE(given.ok()) << given.status();
  return given.ok() ? *std::move(given) : BucketPartition{};
}

std::vector<int64_t> RandomSizes(std::mt19937& random, size_t most_parameters, int64_t most_size) {
  std::vector<int64_t> sizes(random() % (most_parameters + 1));
  for (int64_t& size : sizes)
    size = static_cast<int64_t>(random() % static_cast<uint64_t>(most_size + 1));
  return sizes;
}

// ---- parameters

TEST(Partition, ZERO_01_TheLargestFirstEachToTheLeastLoadedRank) {
  // The loads are 8 and 0, then 8 and 7, 8 and 13, 13 and 13, 15 and 13, 15 and 14.
  const Partition partition = Make({Group({5, 8, 1, 6, 2, 7})}, 2);
  EXPECT_THAT(Indices(partition, 0), ElementsAre(1, 0, 4));
  EXPECT_THAT(Indices(partition, 1), ElementsAre(5, 3, 2));
  EXPECT_THAT(partition.loads, ElementsAre(15, 14));
}

TEST(Partition, ZERO_01_EveryParameterHasOneRankAndLoadsAreTheirSums) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = static_cast<int>(random() % 9 + 1);
    const std::vector<int64_t> sizes = RandomSizes(random, 30, 1000);
    const Partition partition = Make({Group(sizes)}, ranks);
    ASSERT_EQ(partition.parts.size(), static_cast<size_t>(ranks));
    std::vector<size_t> seen;
    for (size_t rank = 0; rank < partition.parts.size(); ++rank) {
      int64_t load = 0;
      for (size_t index : Indices(partition, rank)) {
        seen.push_back(index);
        load += sizes[index];
      }
      EXPECT_EQ(load, partition.loads[rank]);
    }
    std::sort(seen.begin(), seen.end());
    std::vector<size_t> all(sizes.size());
    std::iota(all.begin(), all.end(), size_t{0});
    EXPECT_EQ(seen, all);
    // A greedy choice leaves the fullest rank above the emptiest by one parameter at most.
    const auto [least, most] = std::minmax_element(partition.loads.begin(), partition.loads.end());
    const int64_t largest = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
    EXPECT_LE(*most - *least, largest);
  }
}

TEST(Partition, ZERO_02_SizesOfPyTorchsTestGiveEveryRank24Elements) {
  for (int ranks : {1, 2, 3, 4, 7, 64}) {
    std::vector<int64_t> sizes;
    for (int i = 0; i < ranks; ++i) sizes.insert(sizes.end(), {9, 7, 5, 3});
    EXPECT_THAT(Make({Group(sizes)}, ranks).loads, ::testing::Each(24)) << ranks;
  }
}

TEST(Partition, ZERO_02_TiesGoToTheLowestRankAndEqualSizesKeepTheirOrder) {
  const Partition partition = Make({Group({4, 4, 4, 4, 4})}, 3);
  EXPECT_THAT(Indices(partition, 0), ElementsAre(0, 3));
  EXPECT_THAT(Indices(partition, 1), ElementsAre(1, 4));
  EXPECT_THAT(Indices(partition, 2), ElementsAre(2));
}

TEST(Partition, ZERO_03_LoadsCarryOverSoARankMayHaveNothingOfAGroup) {
  const Partition partition = Make({Group({10}), Group({3, 4}), Group({})}, 2);
  EXPECT_THAT(Indices(partition, 0, 0), ElementsAre(0));
  EXPECT_THAT(Indices(partition, 0, 1), IsEmpty());
  EXPECT_THAT(Indices(partition, 1, 0), IsEmpty());
  EXPECT_THAT(Indices(partition, 1, 1), ElementsAre(1, 0));
  ASSERT_EQ(partition.parts[1].size(), 3u) << "every rank has every group";
  EXPECT_THAT(partition.loads, ElementsAre(10, 7));
}

TEST(Partition, ZERO_03_AGroupThatIsAddedLaterLeavesTheOthersWhereTheyWere) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 100; ++trial) {
    const int ranks = static_cast<int>(random() % 5 + 1);
    const PartitionOptions options{random() % 2 == 0};
    std::vector<PartitionGroup> groups;
    std::vector<std::vector<RankGroup>> before(static_cast<size_t>(ranks));
    for (size_t count = 1; count <= 4; ++count) {
      groups.push_back(Group(RandomSizes(random, 10, 100), static_cast<int64_t>(random() % 9)));
      const Partition now = Make(groups, ranks, options);
      for (size_t rank = 0; rank < before.size(); ++rank) {
        const std::vector<RankGroup> kept(now.parts[rank].begin(), now.parts[rank].end() - 1);
        EXPECT_EQ(kept, before[rank]);
        before[rank] = now.parts[rank];
      }
    }
  }
}

TEST(Partition, ZERO_04_FrozenParametersCountUnlessTheLoadIsTheState) {
  // Balanced by elements, the frozen parameter 0 fills a rank of its own.
  const Partition by_elements = Make({Group({100, 60, 40})}, 2);
  EXPECT_THAT(Indices(by_elements, 0), ElementsAre(0));
  EXPECT_THAT(Indices(by_elements, 1), ElementsAre(1, 2));
  // Balanced by state, it has no load, and the state of the others is spread evenly.
  const Partition by_state = Make({Group({0, 60 * 8, 40 * 8})}, 2);
  EXPECT_THAT(by_state.loads, ElementsAre(480, 320));
  EXPECT_THAT(Indices(by_state, 0), ElementsAre(1));
  EXPECT_THAT(Indices(by_state, 1), ElementsAre(2, 0));
}

TEST(Partition, ZERO_05_AHugeParameterIsNotSplit) {
  const Partition partition = Make({Group({1, 900, 1, 1}, /*rows=*/90)}, 3);
  EXPECT_THAT(partition.loads, ElementsAre(900, 2, 1));
  EXPECT_THAT(partition.parts[0][0], ElementsAre(PartitionPart{1, 0, 90}));
}

TEST(Partition, ZERO_05_AHugeParameterIsCutByRowsIfAsked) {
  // The fair share is 301, so the huge one is cut into 3 parts, and no more.
  const Partition partition = Make({Group({1, 900, 1, 1}, /*rows=*/90)}, 3, {/*cut_huge=*/true});
  EXPECT_THAT(partition.parts[0][0], ElementsAre(PartitionPart{1, 0, 30}, PartitionPart{0, 0, 90}));
  EXPECT_THAT(partition.parts[1][0],
              ElementsAre(PartitionPart{1, 30, 30}, PartitionPart{2, 0, 90}));
  EXPECT_THAT(partition.parts[2][0],
              ElementsAre(PartitionPart{1, 60, 30}, PartitionPart{3, 0, 90}));
  EXPECT_THAT(partition.loads, ElementsAre(301, 301, 301));
}

TEST(Partition, ZERO_05_RowsAreNotCut) {
  EXPECT_THAT(Make({Group({900}, /*rows=*/1)}, 3, {true}).loads, ElementsAre(900, 0, 0));
  EXPECT_THAT(Make({Group({900}, /*rows=*/2)}, 3, {true}).loads, ElementsAre(450, 450, 0));
  EXPECT_THAT(Make({Group({0}, /*rows=*/0)}, 3, {true}).loads, ElementsAre(0, 0, 0));
  EXPECT_THAT(Make({Group({7}, /*rows=*/0)}, 3, {true}).loads, ElementsAre(7, 0, 0));
}

TEST(Partition, ZERO_05_CutParametersLoseNoRowAndNoLoadAndFillTheRanksEvenly) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = static_cast<int>(random() % 7 + 2);
    PartitionGroup group;
    for (int64_t load : RandomSizes(random, 5, 1'000'000))
      group.push_back({load, static_cast<int64_t>(random() % 2000 + 1000)});
    const Partition partition = Make({group}, ranks, {true});
    std::vector<int64_t> next_row(group.size());
    std::vector<PartitionPart> parts;
    for (const auto& groups : partition.parts)
      parts.insert(parts.end(), groups[0].begin(), groups[0].end());
    std::sort(parts.begin(), parts.end(), [](const PartitionPart& a, const PartitionPart& b) {
      return a.first_row < b.first_row;
    });
    for (const PartitionPart& part : parts) {
      EXPECT_EQ(part.first_row, next_row[part.parameter]) << "no gap and no overlap";
      EXPECT_GT(part.rows, 0);
      next_row[part.parameter] += part.rows;
    }
    int64_t total = 0, loads = 0;
    for (size_t i = 0; i < group.size(); ++i) {
      EXPECT_EQ(next_row[i], group[i].rows);
      total += group[i].load;
    }
    for (int64_t load : partition.loads) loads += load;
    EXPECT_EQ(loads, total);
    // No part is larger than a fair share, except for the rounding to whole rows.
    const int64_t share = total / ranks + 1;
    for (int64_t load : partition.loads) EXPECT_LE(load, 2 * share + 2000);
  }
}

TEST(Partition, WhatMakesNoSenseIsRefused) {
  const auto refused = [](const std::vector<PartitionGroup>& groups, int ranks) {
    const absl::Status status = MakePartition(groups, ranks).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused({}, 0), HasSubstr("0 ranks"));
  EXPECT_THAT(refused({}, -1), HasSubstr("-1 ranks"));
  EXPECT_THAT(refused({}, kMostRanks + 1), HasSubstr("65537 ranks"));
  EXPECT_THAT(refused({Group({1}), Group({1, -2})}, 2), HasSubstr("parameter 1 of group 1"));
  EXPECT_THAT(refused({Group({1}, -3)}, 2), HasSubstr("parameter 0 of group 0"));
  EXPECT_THAT(refused({Group({kMostLoad, 1})}, 2), HasSubstr("parameter 1 of group 0"));
  EXPECT_THAT(Make({}, 2).loads, ElementsAre(0, 0));
  EXPECT_THAT(Make({Group({kMostLoad})}, 2, {true}).loads, ElementsAre(kMostLoad, 0));
  EXPECT_THAT(Make({Group({kMostLoad}, kMostLoad)}, 2, {true}).loads,
              ElementsAre(kMostLoad / 2, kMostLoad / 2));
}

// ---- buckets

TEST(Buckets, ZERO_36_BucketIGoesToRankIModW) {
  const auto given = WholeBuckets({{1, 2}, {3}, {}, {4, 5, 6}}, 3);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_THAT((*given)[0], ElementsAre(BucketPiece{0, 0, 2}, BucketPiece{3, 0, 3}));
  EXPECT_THAT((*given)[1], ElementsAre(BucketPiece{1, 0, 1}));
  EXPECT_THAT((*given)[2], ElementsAre(BucketPiece{2, 0, 0}));
  EXPECT_FALSE(WholeBuckets({}, 0).ok());
}

TEST(Buckets, ZERO_37_SmallBucketsFirstAndPiecesOfAboutAFairShare) {
  // T is 9. Bucket 1 goes to rank 0, the first two of bucket 0 to rank 1, its rest to rank 0.
  const BucketPartition given = Shard({{4, 4, 4}, {6}}, 2);
  EXPECT_THAT(given[0], ElementsAre(BucketPiece{1, 0, 1}, BucketPiece{0, 2, 1}));
  EXPECT_THAT(given[1], ElementsAre(BucketPiece{0, 0, 2}));
}

TEST(Buckets, ZERO_37_TheFairShareIsARealNumber) {
  // T is 10 / 3, so 2 + 1 stay together.
  const BucketPartition given = Shard({{2, 1, 1, 6}}, 3);
  EXPECT_THAT(given[0], ElementsAre(BucketPiece{0, 0, 2}));
  EXPECT_THAT(given[1], ElementsAre(BucketPiece{0, 2, 1}));
  EXPECT_THAT(given[2], ElementsAre(BucketPiece{0, 3, 1}));
}

TEST(Buckets, ZERO_37_AParameterAboveTheFairShareIsAPieceOfItsOwn) {
  EXPECT_THAT(Shard({{10, 1}}, 2)[0], ElementsAre(BucketPiece{0, 0, 1}));
  EXPECT_THAT(Shard({{10, 1}}, 2)[1], ElementsAre(BucketPiece{0, 1, 1}));
  EXPECT_THAT(Shard({{10}}, 2)[0], ElementsAre(BucketPiece{0, 0, 1}));
}

TEST(Buckets, ZERO_37_EqualBucketsKeepTheirOrderAndTiesGoToTheLowestRank) {
  const BucketPartition given = Shard({{3}, {3}, {3}, {3}}, 2);
  EXPECT_THAT(given[0], ElementsAre(BucketPiece{0, 0, 1}, BucketPiece{2, 0, 1}));
  EXPECT_THAT(given[1], ElementsAre(BucketPiece{1, 0, 1}, BucketPiece{3, 0, 1}));
}

TEST(Buckets, ZERO_38_MorePiecesThanRanksAreRefusedOrSharedAsAsked) {
  const absl::Status refused = ShardBuckets({{5, 5, 5, 5}}, 3).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("bucket 0 has more than 3 pieces"));
  ASSERT_TRUE(GetDetail(refused).has_value());
  EXPECT_FALSE(GetDetail(refused)->remedy.empty());
  const BucketPartition given = Shard({{5, 5, 5, 5}}, 3, {/*several_pieces_per_rank=*/true});
  EXPECT_THAT(given[0], ElementsAre(BucketPiece{0, 0, 1}, BucketPiece{0, 3, 1}));
  EXPECT_THAT(given[1], ElementsAre(BucketPiece{0, 1, 1}));
  EXPECT_THAT(given[2], ElementsAre(BucketPiece{0, 2, 1}));
}

TEST(Buckets, ZERO_37_ZERO_38_EveryParameterIsInOnePieceAndNoRankHasTwoWhileOthersHaveNone) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const int ranks = static_cast<int>(random() % 6 + 1);
    std::vector<Bucket> buckets(random() % 5);
    for (Bucket& bucket : buckets) bucket = RandomSizes(random, 12, 50);
    const BucketPartition given = Shard(buckets, ranks, {true});
    std::vector<std::vector<int>> seen;
    for (const Bucket& bucket : buckets) seen.emplace_back(bucket.size());
    std::vector<std::vector<int>> pieces(buckets.size(),
                                         std::vector<int>(static_cast<size_t>(ranks)));
    for (size_t rank = 0; rank < given.size(); ++rank) {
      for (const BucketPiece& piece : given[rank]) {
        ASSERT_GT(piece.count, 0u);
        ++pieces[piece.bucket][rank];
        for (size_t i = 0; i < piece.count; ++i) ++seen[piece.bucket].at(piece.first + i);
      }
    }
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) {
      EXPECT_THAT(seen[bucket], ::testing::Each(1));
      const auto [least, most] = std::minmax_element(pieces[bucket].begin(), pieces[bucket].end());
      EXPECT_TRUE(*most <= 1 || *least >= 1);
    }
  }
}

TEST(Buckets, WhatMakesNoSenseIsRefused) {
  EXPECT_EQ(ShardBuckets({{1}}, 0).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status negative = ShardBuckets({{1}, {2, -1}}, 2).status();
  EXPECT_EQ(negative.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(negative.message()), HasSubstr("parameter 1 of bucket 1"));
  EXPECT_EQ(ShardBuckets({{kMostLoad}, {1}}, 2).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (const auto& rank : Shard({}, 2)) EXPECT_THAT(rank, IsEmpty());
}

}  // namespace
}  // namespace psd::zero
