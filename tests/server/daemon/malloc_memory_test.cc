#include "server/daemon/malloc_memory.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace psd::server {
namespace {

TEST(LookRule, AnIdleProcessLooksOnceItHasUsedEnoughTime) {
  LookRule rule;
  EXPECT_TRUE(rule.ShouldLook(absl::Milliseconds(50)));
  EXPECT_FALSE(rule.ShouldLook(absl::Milliseconds(50)));
  int looks = 0;
  for (int used = 51; used <= 110; ++used) looks += rule.ShouldLook(absl::Milliseconds(used));
  EXPECT_EQ(looks, 3) << "what it uses adds up between looks";
  EXPECT_TRUE(rule.ShouldLook(absl::Seconds(1)));
}

TEST(TrimRule, TrimsWhenMuchBecameFree) {
  TrimRule rule(100);
  EXPECT_FALSE(rule.ShouldTrim({100, 0}));
  EXPECT_TRUE(rule.ShouldTrim({101, 0}));
}

TEST(TrimRule, WhatWasTrimmedIsNotTrimmedAgain) {
  TrimRule rule(100);
  rule.Trimmed({500, 0});
  EXPECT_FALSE(rule.ShouldTrim({500, 0}));
  EXPECT_FALSE(rule.ShouldTrim({600, 0}));
  EXPECT_TRUE(rule.ShouldTrim({601, 0}));
}

TEST(TrimRule, WhatWasUsedAgainCountsAgain) {
  TrimRule rule(100);
  rule.Trimmed({500, 0});
  EXPECT_FALSE(rule.ShouldTrim({50, 0}));
  EXPECT_TRUE(rule.ShouldTrim({151, 0}));
}

TEST(TrimRule, WhatWasUsedAndFreedBetweenTwoLooksIsResident) {
  TrimRule rule(100);
  rule.Trimmed({500, 1000});
  EXPECT_FALSE(rule.ShouldTrim({500, 1100}));
  EXPECT_TRUE(rule.ShouldTrim({500, 1101}));
}

TEST(TrimRule, TheLowestPointCountsWhereTheLastTrimCameAtAHighOne) {
  TrimRule rule(100);
  rule.Trimmed({500, 3000});
  EXPECT_FALSE(rule.ShouldTrim({500, 1000}));
  EXPECT_TRUE(rule.ShouldTrim({500, 1101}));
}

TEST(TrimRule, ALargeProcessWithLittleFreeIsNotTrimmed) {
  TrimRule rule(100);
  rule.Trimmed({0, 1000});
  EXPECT_FALSE(rule.ShouldTrim({100, 5000}));
}

}  // namespace
}  // namespace psd::server
