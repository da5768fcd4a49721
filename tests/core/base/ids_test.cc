#include "core/base/ids.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace psd {
namespace {

TEST(IncarnationTest, IsNeverZeroAndNeverTheSame) {
  std::set<Incarnation> seen;
  for (int i = 0; i < 1000; ++i) {
    Incarnation incarnation = NewIncarnation();
    EXPECT_NE(incarnation, 0u);
    EXPECT_TRUE(seen.insert(incarnation).second);
  }
}

TEST(IncarnationTest, UsesAllBits) {
  Incarnation any = 0;
  for (int i = 0; i < 200; ++i) any |= NewIncarnation();
  EXPECT_EQ(any, ~Incarnation{0});
}

TEST(IncarnationTest, PrintsSixteenDigits) {
  EXPECT_EQ(IncarnationToString(0x2a), "000000000000002a");
  EXPECT_EQ(IncarnationToString(~Incarnation{0}), "ffffffffffffffff");
}

TEST(GlobalIdTest, PrintsBothParts) {
  EXPECT_EQ((GlobalId{0x1f3c9a0b44d2e677, 12}).ToString(), "1f3c9a0b44d2e677/12");
}

TEST(GlobalIdTest, NoneIsZeroZeroOnly) {
  EXPECT_TRUE(GlobalId{}.IsNone());
  EXPECT_FALSE((GlobalId{1, 0}).IsNone());
  EXPECT_FALSE((GlobalId{0, 1}).IsNone());
}

TEST(GlobalIdTest, ComparesByIncarnationThenCounter) {
  GlobalId a{1, 5}, b{1, 6}, c{2, 0};
  EXPECT_TRUE(a < b && b < c && a < c);
  EXPECT_FALSE(b < a || c < b || a < a);
  EXPECT_TRUE(a == a && a != b && b != c);
}

TEST(GlobalIdTest, Hashes) {
  absl::flat_hash_set<GlobalId> ids{{1, 2}, {2, 1}, {1, 2}};
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_TRUE(ids.contains(GlobalId{2, 1}));
}

TEST(IdSourceTest, CountsFromOne) {
  IdSource source(7);
  EXPECT_EQ(source.incarnation(), 7u);
  EXPECT_EQ(source.Next(), (GlobalId{7, 1}));
  EXPECT_EQ(source.Next(), (GlobalId{7, 2}));
}

TEST(IdSourceTest, IsUniqueOverThreads) {
  constexpr int kThreads = 4, kEach = 5000;
  IdSource source(7);
  std::vector<std::vector<GlobalId>> ids(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : ids) {
    threads.emplace_back([&source, &mine] {
      for (int i = 0; i < kEach; ++i) mine.push_back(source.Next());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<GlobalId> all;
  for (const auto& mine : ids) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), size_t{kThreads * kEach});
  EXPECT_EQ(all.rbegin()->counter, uint64_t{kThreads * kEach});
}

}  // namespace
}  // namespace psd
