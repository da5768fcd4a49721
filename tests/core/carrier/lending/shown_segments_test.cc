#include "core/carrier/shm/lending/shown_segments.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "core/carrier/shm/lending/limits.h"

namespace psd::carrier {
namespace {

using Ids = std::vector<uint64_t>;

// Returns the fresh ones of `ids`, or {0} if they may not be named.
Ids Name(ShownSegments& shown, const Ids& ids) {
  Ids fresh;
  return shown.Name(ids, fresh) ? fresh : Ids{0};
}

TEST(ShownSegments, ASegmentIsPassedOnceAndByOneThread) {
  ShownSegments shown;
  EXPECT_EQ(Name(shown, {3, 5}), (Ids{3, 5}));
  EXPECT_EQ(Name(shown, {5, 7}), (Ids{0})) << "5 is on its way";
  EXPECT_EQ(shown.size(), 2u) << "and 7 is not begun";
  shown.Passed(3);
  shown.Passed(5);
  EXPECT_EQ(Name(shown, {3, 5}), (Ids{}));
  EXPECT_EQ(Name(shown, {3, 7}), (Ids{7}));
  shown.Hide(7);
  EXPECT_EQ(Name(shown, {7}), (Ids{7}));
}

TEST(ShownSegments, ADeclinedSegmentIsNotNamedAgain) {
  ShownSegments shown;
  Name(shown, {3});
  shown.Passed(3);
  shown.Decline(3);
  EXPECT_EQ(Name(shown, {3, 4}), (Ids{0}));
  shown.Decline(9);
  EXPECT_EQ(Name(shown, {9}), (Ids{9})) << "the other end never knew it";
}

TEST(ShownSegments, TheOtherEndForgetsASegmentThatIsGoneOnce) {
  ShownSegments shown;
  EXPECT_FALSE(shown.Gone(3)) << "the other end never knew it";
  Name(shown, {3, 4});
  shown.Passed(3);
  shown.Passed(4);
  EXPECT_EQ(shown.Forget(3).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(shown.Gone(3));
  EXPECT_FALSE(shown.Gone(3));
  EXPECT_EQ(shown.size(), 2u);
  EXPECT_TRUE(shown.Forget(3).ok());
  EXPECT_EQ(shown.Forget(3).code(), absl::StatusCode::kInvalidArgument);
  shown.Decline(4);
  EXPECT_TRUE(shown.Gone(4)) << "a declined one is remembered at the other end, too";
  EXPECT_TRUE(shown.Forget(4).ok());
  EXPECT_EQ(shown.size(), 0u);
}

TEST(ShownSegments, TheirNumberIsBounded) {
  ShownSegments shown;
  Ids many(kMaxSegments);
  std::iota(many.begin(), many.end(), 1);
  EXPECT_EQ(Name(shown, many).size(), kMaxSegments);
  EXPECT_EQ(Name(shown, {kMaxSegments + 1}), (Ids{0}));
  shown.Hide(1);
  EXPECT_EQ(Name(shown, {kMaxSegments + 1, kMaxSegments + 2}), (Ids{0}));
  EXPECT_EQ(Name(shown, {kMaxSegments + 1}), (Ids{kMaxSegments + 1}));
}

}  // namespace
}  // namespace psd::carrier
