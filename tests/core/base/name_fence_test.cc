#include "core/base/name_fence.h"

#include "gtest/gtest.h"

namespace psd {
namespace {

TEST(NameFence, WhoLosesItsNameToAnotherIsFenced) {
  NameFence names(10);
  names.Take("a", 1);
  names.Take("a", 1);
  names.Take("b", 2);
  EXPECT_FALSE(names.IsFenced(1));
  names.Take("a", 3);
  EXPECT_TRUE(names.IsFenced(1));
  EXPECT_FALSE(names.IsFenced(2));
  EXPECT_FALSE(names.IsFenced(3));
}

TEST(NameFence, ForgetsTheOldestBeyondItsBound) {
  NameFence names(2);
  names.Take("a", 1);
  names.Take("b", 2);
  names.Take("c", 3);  // a is forgotten
  names.Take("a", 4);
  EXPECT_FALSE(names.IsFenced(1));
  names.Take("c", 5);
  EXPECT_TRUE(names.IsFenced(3)) << "c is still known";
  names.Take("c", 6);
  names.Take("c", 7);
  EXPECT_FALSE(names.IsFenced(3));
  EXPECT_TRUE(names.IsFenced(5));
  EXPECT_TRUE(names.IsFenced(6));
}

TEST(NameFence, AnOldEntryDoesNotForgetANewHolder) {
  NameFence names(2);
  names.Take("a", 1);
  names.Take("a", 2);
  names.Take("b", 3);  // drops the entry of the first holder of a, and keeps the second one
  names.Take("a", 4);
  EXPECT_TRUE(names.IsFenced(2));
}

}  // namespace
}  // namespace psd
