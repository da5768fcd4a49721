#include "core/carrier/shm/spin_policy.h"

#include "gtest/gtest.h"

namespace psd::carrier {
namespace {

constexpr absl::Duration kShort = PauseLengths::kShortLook;
constexpr absl::Duration kLong = PauseLengths::kLongLook;

void Report(PauseLengths& pauses, int times, absl::Duration pause) {
  for (int i = 0; i < times; ++i) pauses.Report(pause);
}

TEST(SpinPolicyTest, LooksThatFindNothingBecomeRareUntilOneFindsSomething) {
  SpinPolicy policy(/*enabled=*/true);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(policy.Worthwhile());
    policy.Report(false);
  }
  int looks = 0;
  for (int i = 0; i < 160; ++i) looks += policy.Worthwhile() ? 1 : 0;
  EXPECT_EQ(looks, 40);
  policy.Report(true);
  EXPECT_TRUE(policy.Worthwhile());
}

TEST(SpinPolicyTest, NeverLooksWithOneProcessor) {
  SpinPolicy policy(/*enabled=*/false);
  policy.Report(true);
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(policy.Worthwhile());
}

TEST(SpinPolicyTest, ACrowdEndsLooksAtOnce) {
  SpinPolicy policy(/*enabled=*/true);
  policy.ReportCrowded();
  EXPECT_FALSE(policy.Worthwhile());
}

TEST(PauseLengthsTest, LooksForLongOnlyAfterSeveralPausesThatALongLookOutlasts) {
  PauseLengths pauses;
  Report(pauses, 3, kLong);
  EXPECT_EQ(pauses.Look(), kShort);
  pauses.Report(kLong);
  EXPECT_EQ(pauses.Look(), kLong);
}

TEST(PauseLengthsTest, ShortPausesBetweenThemChangeNothing) {
  PauseLengths pauses;
  Report(pauses, 100, kShort);
  EXPECT_EQ(pauses.Look(), kShort);
  Report(pauses, 4, kLong);
  Report(pauses, 100, kShort);
  EXPECT_EQ(pauses.Look(), kLong);
}

TEST(PauseLengthsTest, FourPausesThatAreTooLongEndLongLooks) {
  PauseLengths pauses;
  Report(pauses, 100, kLong);
  Report(pauses, 3, kLong + absl::Microseconds(1));
  EXPECT_EQ(pauses.Look(), kLong);
  pauses.Report(absl::InfiniteDuration());
  EXPECT_EQ(pauses.Look(), kShort);
}

TEST(PauseLengthsTest, OneLongPauseAfterThreeShorterOnesKeepsLooksShort) {
  PauseLengths pauses;
  for (int i = 0; i < 100; ++i) {
    Report(pauses, 3, kLong);
    pauses.Report(absl::Seconds(1));
    EXPECT_EQ(pauses.Look(), kShort);
  }
}

}  // namespace
}  // namespace psd::carrier
