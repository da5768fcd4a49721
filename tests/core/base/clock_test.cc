#include "core/base/clock.h"

#include <gtest/gtest.h>

namespace psd {
namespace {

TEST(SteadyClockTest, NeverGoesBack) {
  absl::Time last = Clock::Steady().Now();
  for (int i = 0; i < 10'000; ++i) {
    absl::Time now = Clock::Steady().Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(SteadyClockTest, Moves) {
  absl::Time start = Clock::Steady().Now();
  while (Clock::Steady().Now() == start) {
  }
}

TEST(FakeClockTest, StandsStillUntilAdvanced) {
  FakeClock clock;
  absl::Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Milliseconds(1500));
  clock.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(clock.Now() - start, absl::Nanoseconds(1'500'000'001));
}

}  // namespace
}  // namespace psd
