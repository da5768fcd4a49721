#include "core/device/stream_pool.h"

#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StreamPoolTest, HandsOutPartsSideBySideUntilNothingIsLeft) {
  StreamPool pool(100);
  EXPECT_EQ(pool.Take(60, 0)->offset, 0u);
  EXPECT_EQ(pool.Take(40, 1)->offset, 60u);
  EXPECT_FALSE(pool.Take(1, 0).has_value());
  EXPECT_EQ(pool.largest_free_bytes(), 0u);
}

TEST(StreamPoolTest, TheStreamThatFreedAPartGetsItBackWithoutAWait) {
  StreamPool pool(100);
  pool.Give(pool.Take(100, 3)->offset, {{3, 7}});
  EXPECT_THAT(pool.Take(100, 3)->after, IsEmpty());
}

TEST(StreamPoolTest, AnotherStreamWaitsForTheWorkThatUsesThePart) {
  StreamPool pool(100);
  pool.Give(pool.Take(100, 3)->offset, {{3, 7}, {4, 2}});
  EXPECT_THAT(pool.Take(100, 4)->after, ElementsAre(StreamPoint{3, 7}));
}

TEST(StreamPoolTest, NobodyWaitsForWorkThatIsDone) {
  StreamPool pool(100);
  pool.Give(pool.Take(100, 3)->offset, {{3, 7}});
  pool.Passed({3, 6});
  const auto early = pool.Take(100, 5);
  EXPECT_THAT(early->after, ElementsAre(StreamPoint{3, 7}));
  pool.Give(early->offset, {{3, 7}});
  pool.Passed({3, 8});
  EXPECT_THAT(pool.Take(100, 5)->after, IsEmpty());
}

TEST(StreamPoolTest, APartWithoutAWaitIsPreferredToASmallerOneWithAWait) {
  StreamPool pool(100);
  const size_t small = pool.Take(20, 0)->offset;
  const size_t between = pool.Take(10, 0)->offset;
  const size_t large = pool.Take(70, 0)->offset;
  pool.Give(small, {{1, 1}});
  pool.Give(large, {{2, 1}});
  EXPECT_EQ(pool.Take(20, 2)->offset, large);
  EXPECT_EQ(pool.Take(20, 1)->offset, small);
  pool.Give(between, {});
}

TEST(StreamPoolTest, TheSmallestOfEqualPartsIsTaken) {
  StreamPool pool(100);
  const size_t large = pool.Take(50, 0)->offset;
  pool.Take(10, 0);
  const size_t small = pool.Take(30, 0)->offset;
  pool.Take(10, 0);
  pool.Give(large, {});
  pool.Give(small, {});
  EXPECT_EQ(pool.Take(25, 0)->offset, small);
}

TEST(StreamPoolTest, NeighboursThatWaitForDifferentWorkAreJoinedOnlyWhenNeeded) {
  StreamPool pool(100);
  const size_t first = pool.Take(50, 0)->offset;
  const size_t second = pool.Take(50, 0)->offset;
  pool.Give(first, {{1, 5}, {2, 1}});
  pool.Give(second, {{1, 9}});
  EXPECT_EQ(pool.largest_free_bytes(), 100u);
  const auto half = pool.Take(50, 1);
  EXPECT_EQ(half->offset, second);
  pool.Give(half->offset, {{1, 9}});
  EXPECT_THAT(pool.Take(100, 7)->after, ElementsAre(StreamPoint{1, 9}, StreamPoint{2, 1}));
}

// Compares with a plain list of what is taken and given back.
TEST(StreamPoolTest, PartsNeverOverlapAndEveryWaitIsAskedFor) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    constexpr size_t kBytes = 64;
    StreamPool pool(kBytes);
    std::mt19937 random(seed);
    std::map<size_t, size_t> taken;
    // For each byte, the points with which it was given back last. They are behind all earlier use,
    // which the taker's stream has waited for.
    std::vector<std::map<uint32_t, uint64_t>> used(kBytes);
    std::map<uint32_t, uint64_t> passed;
    uint64_t position = 0;
    for (int step = 0; step < 2000; ++step) {
      const uint32_t stream = random() % 3;
      if (random() % 8 == 0) {
        passed[stream] = position;
        pool.Passed({stream, position});
      } else if (!taken.empty() && random() % 2 == 0) {
        const auto given = std::next(taken.begin(), random() % taken.size());
        const StreamPoint point{stream, ++position};
        for (size_t i = 0; i < given->second; ++i) used[given->first + i] = {{stream, position}};
        pool.Give(given->first, {point});
        taken.erase(given);
      } else {
        const size_t bytes = 1 + random() % 16;
        const auto part = pool.Take(bytes, stream);
        if (!part.has_value()) {
          EXPECT_LT(pool.largest_free_bytes(), bytes);
          continue;
        }
        std::map<uint32_t, uint64_t> awaited;
        for (const StreamPoint& point : part->after) awaited[point.stream] = point.position;
        for (size_t i = part->offset; i < part->offset + bytes; ++i) {
          for (const auto& [other, at] : used[i]) {
            if (other == stream || passed[other] >= at) continue;
            EXPECT_GE(awaited[other], at) << "seed " << seed;
          }
        }
        const auto next = taken.lower_bound(part->offset);
        if (next != taken.end()) {
          EXPECT_LE(part->offset + bytes, next->first);
        }
        if (next != taken.begin()) {
          const auto before = std::prev(next);
          EXPECT_LE(before->first + before->second, part->offset);
        }
        EXPECT_LE(part->offset + bytes, kBytes);
        taken[part->offset] = bytes;
      }
    }
  }
}

TEST(StreamPoolDeathTest, APartIsGivenBackOnce) {
  StreamPool pool(10);
  const size_t offset = pool.Take(10, 0)->offset;
  pool.Give(offset, {});
  EXPECT_DEATH(pool.Give(offset, {}), "no part of the pool begins at 0");
}

}  // namespace
}  // namespace psd
