#include "core/base/length_cache.h"

#include <memory>

#include "gtest/gtest.h"

namespace psd {
namespace {

TEST(LengthCacheTest, GivesWhatHasExactlyTheLength) {
  LengthCache<int> cache(100);
  cache.Give(10, 1);
  cache.Give(20, 2);
  EXPECT_EQ(cache.Take(15), std::nullopt);
  EXPECT_EQ(cache.Take(20), 2);
  EXPECT_EQ(cache.Take(20), std::nullopt);
  EXPECT_EQ(cache.Take(10), 1);
}

TEST(LengthCacheTest, WhatFindsNoRoomIsFreed) {
  LengthCache<std::shared_ptr<int>> cache(25);
  const std::weak_ptr<int> kept = [&] {
    auto piece = std::make_shared<int>(1);
    cache.Give(20, piece);
    return piece;
  }();
  const std::weak_ptr<int> freed = [&] {
    auto piece = std::make_shared<int>(2);
    cache.Give(6, piece);
    return piece;
  }();
  EXPECT_FALSE(kept.expired());
  EXPECT_TRUE(freed.expired());
  EXPECT_TRUE(cache.Take(20).has_value());
  cache.Give(25, std::make_shared<int>(3));  // there is room again
  EXPECT_TRUE(cache.Take(25).has_value());
}

TEST(LengthCacheTest, ClearFreesAll) {
  LengthCache<int> cache(100);
  EXPECT_FALSE(cache.Clear());
  cache.Give(60, 1);
  EXPECT_TRUE(cache.Clear());
  EXPECT_EQ(cache.Take(60), std::nullopt);
  cache.Give(100, 2);  // all of the room is back
  EXPECT_EQ(cache.Take(100), 2);
}

TEST(LengthCacheTest, AClosedCacheKeepsNothing) {
  LengthCache<std::shared_ptr<int>> cache(100);
  auto piece = std::make_shared<int>(1);
  const std::weak_ptr<int> before = piece;
  cache.Give(10, std::move(piece));
  cache.Close();
  EXPECT_TRUE(before.expired());
  piece = std::make_shared<int>(2);
  const std::weak_ptr<int> after = piece;
  cache.Give(10, std::move(piece));
  EXPECT_TRUE(after.expired());
}

TEST(LengthCacheTest, TakesWhatWasGivenLast) {
  LengthCache<int> cache(100);
  cache.Give(10, 1);
  cache.Give(10, 2);
  cache.Give(20, 3);
  EXPECT_EQ(cache.Take(10), 2);
  EXPECT_EQ(cache.Take(10), 1);
  EXPECT_EQ(cache.Take(10), std::nullopt);
}

TEST(LengthCacheTest, AgeFreesWhatNobodyHasTakenSinceTheCallBefore) {
  LengthCache<int> cache(30);
  cache.Give(10, 1);
  cache.Age();
  cache.Give(20, 2);
  cache.Age();
  EXPECT_EQ(cache.Take(10), std::nullopt);
  EXPECT_EQ(cache.Take(20), 2);
  cache.Give(30, 3);  // all of the room is back
  cache.Age();
  EXPECT_EQ(cache.Take(30), 3);
}

}  // namespace
}  // namespace psd
