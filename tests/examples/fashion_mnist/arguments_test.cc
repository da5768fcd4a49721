#include "examples/fashion_mnist/arguments.h"

#include "gtest/gtest.h"

namespace psd::examples {
namespace {

TEST(Arguments, Owners) {
  const auto owners = ParseOwners("a=127.0.0.1:1,b=[::1]:2");
  ASSERT_TRUE(owners.ok()) << owners.status();
  ASSERT_EQ(owners->size(), 2u);
  EXPECT_EQ((*owners)[1].name, "b");
  EXPECT_EQ((*owners)[1].address, "[::1]:2");
  for (const char* bad : {"", "a", "a=", "=x", "a=1,", "a=1,a=2"}) {
    EXPECT_FALSE(ParseOwners(bad).ok()) << bad;
  }
}

TEST(Arguments, Part) {
  const auto part = ParsePart("1/3");
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->part, 1);
  EXPECT_EQ(part->parts, 3);
  for (const char* bad : {"", "1", "/", "2/2", "-1/2", "a/b", "0/0"}) {
    EXPECT_FALSE(ParsePart(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace psd::examples
