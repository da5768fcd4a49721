#include "core/base/nearest_name.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace psd {
namespace {

std::string Nearest(absl::string_view name, const std::vector<std::string>& candidates) {
  return NearestName(name, candidates);
}

TEST(NearestNameTest, FindsEachKindOfSlip) {
  const std::vector<std::string> known = {"listen", "lease_ms", "workers", "log_level"};
  EXPECT_EQ(Nearest("lisen", known), "listen");
  EXPECT_EQ(Nearest("listenn", known), "listen");
  EXPECT_EQ(Nearest("liztan", known), "listen");
  EXPECT_EQ(Nearest("lsiten", known), "listen");
  EXPECT_EQ(Nearest("log-level", known), "log_level");
  EXPECT_EQ(Nearest("workers", known), "workers");
}

TEST(NearestNameTest, NothingNearGivesNothing) {
  EXPECT_EQ(Nearest("port", {"listen", "workers"}), "");
  EXPECT_EQ(Nearest("port", {}), "");
  EXPECT_EQ(Nearest("", {"listen"}), "");
}

TEST(NearestNameTest, AThirdOfTheNameMayDiffer) {
  EXPECT_EQ(Nearest("abcdef", {"abcdXY"}), "abcdXY");
  EXPECT_EQ(Nearest("abcdef", {"abcXYZ"}), "");
  EXPECT_EQ(Nearest("ab", {"aX"}), "aX");
  EXPECT_EQ(Nearest("ab", {"XY"}), "");
}

TEST(NearestNameTest, TheNearestWinsAndOfEqualsTheFirst) {
  EXPECT_EQ(Nearest("momentum", {"momentXX", "momentuX"}), "momentuX");
  EXPECT_EQ(Nearest("beta3", {"beta1", "beta2"}), "beta1");
}

TEST(NearestNameTest, LongNamesAreComparedByTheirBeginning) {
  const std::string stem(64, 'a');
  EXPECT_EQ(Nearest(stem + "x", {stem + "yyyy"}), stem + "yyyy");
  EXPECT_EQ(Nearest(std::string(1 << 20, 'a'), {std::string(1 << 20, 'b')}), "");
}

TEST(NearestNameTest, CommonEndsCostNothing) {
  const std::string stem = "model.layers.", rest = ".attention.query_projection.weight";
  NearestNameFinder finder(stem + "9999" + rest);
  for (int i = 0; i < 9'000; ++i) finder.Consider(stem + std::to_string(i % 10) + rest);
  finder.Consider(stem + "999" + rest);
  EXPECT_EQ(finder.nearest(), stem + "999" + rest);
}

TEST(NearestNameTest, ManyCandidatesCostABoundedTime) {
  NearestNameFinder finder("weight");
  for (int i = 0; i < 1'000'000 / (6 * 6); ++i) finder.Consider("xxxxxx");
  finder.Consider("eightw");  // the name is near, but comes after the bound
  EXPECT_EQ(finder.nearest(), "");
}

TEST(DidYouMeanTest, IsTheEndOfAMessage) {
  EXPECT_EQ(DidYouMean("lr"), "; did you mean 'lr'?");
  EXPECT_EQ(DidYouMean(""), "");
}

}  // namespace
}  // namespace psd
