#include "server/daemon/malloc_memory.h"

#include "gtest/gtest.h"

namespace psd::server {
namespace {

TEST(TrimRule, TrimsWhenMuchBecameFree) {
  TrimRule rule(100);
  EXPECT_FALSE(rule.ShouldTrim(100));
  EXPECT_TRUE(rule.ShouldTrim(101));
}

TEST(TrimRule, WhatWasTrimmedIsNotTrimmedAgain) {
  TrimRule rule(100);
  EXPECT_TRUE(rule.ShouldTrim(500));
  EXPECT_FALSE(rule.ShouldTrim(500));
  EXPECT_FALSE(rule.ShouldTrim(600));
  EXPECT_TRUE(rule.ShouldTrim(601));
}

TEST(TrimRule, WhatWasUsedAgainCountsAgain) {
  TrimRule rule(100);
  EXPECT_TRUE(rule.ShouldTrim(500));
  EXPECT_FALSE(rule.ShouldTrim(50));
  EXPECT_TRUE(rule.ShouldTrim(151));
}

}  // namespace
}  // namespace psd::server
