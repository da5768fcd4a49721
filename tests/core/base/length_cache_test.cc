#include "core/base/length_cache.h"

#include <memory>

#include "gtest/gtest.h"

namespace psd {
namespace {

TEST(LengthCacheTest, GivesWhatHasExactlyTheLength) {
  LengthCache<int> cache(std::make_shared<CacheRoom>(100));
  cache.Give(10, 1);
  cache.Give(20, 2);
  EXPECT_EQ(cache.Take(15), std::nullopt);
  EXPECT_EQ(cache.Take(20), 2);
  EXPECT_EQ(cache.Take(20), std::nullopt);
  EXPECT_EQ(cache.Take(10), 1);
}

TEST(LengthCacheTest, WhatFindsNoRoomIsFreed) {
  LengthCache<std::shared_ptr<int>> cache(std::make_shared<CacheRoom>(25));
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

TEST(LengthCacheTest, CachesThatShareTheirRoomKeepNoMoreTogether) {
  const auto room = std::make_shared<CacheRoom>(100);
  LengthCache<int> one(room);
  {
    LengthCache<int> other(room);
    one.Give(60, 1);
    other.Give(41, 2);
    EXPECT_EQ(other.Take(41), std::nullopt);
    other.Give(40, 3);
    EXPECT_EQ(one.Take(60), 1);
    one.Give(61, 4);
    EXPECT_EQ(one.Take(61), std::nullopt);
    other.Close();
    one.Give(61, 5);
    other.Give(10, 6);
    EXPECT_EQ(one.Take(61), 5);
  }
  one.Give(100, 7);
  EXPECT_TRUE(one.Clear());
  one.Give(90, 8);
  one.Age();
  one.Age();
  {
    LengthCache<int> other(room);
    other.Give(100, 9);
  }
  one.Give(100, 10);
  EXPECT_EQ(one.Take(100), 10) << "what a cache kept that is gone counts no more";
}

TEST(LengthCacheTest, ClearFreesAll) {
  LengthCache<int> cache(std::make_shared<CacheRoom>(100));
  EXPECT_FALSE(cache.Clear());
  cache.Give(60, 1);
  EXPECT_TRUE(cache.Clear());
  EXPECT_EQ(cache.Take(60), std::nullopt);
  cache.Give(100, 2);  // all of the room is back
  EXPECT_EQ(cache.Take(100), 2);
}

TEST(LengthCacheTest, AClosedCacheKeepsNothing) {
  LengthCache<std::shared_ptr<int>> cache(std::make_shared<CacheRoom>(100));
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
  LengthCache<int> cache(std::make_shared<CacheRoom>(100));
  cache.Give(10, 1);
  cache.Give(10, 2);
  cache.Give(20, 3);
  EXPECT_EQ(cache.Take(10), 2);
  EXPECT_EQ(cache.Take(10), 1);
  EXPECT_EQ(cache.Take(10), std::nullopt);
}

TEST(LengthCacheTest, AgeFreesWhatNobodyHasTakenSinceTheCallBefore) {
  LengthCache<int> cache(std::make_shared<CacheRoom>(30));
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
