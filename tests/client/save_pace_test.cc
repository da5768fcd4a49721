#include "client/save_pace.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

constexpr absl::Duration kWork = absl::Milliseconds(40);
const absl::Time kStart = absl::UnixEpoch();

TEST(SavePace, FullSpeedWhileTrainingStandsStill) {
  SavePace pace(0.2);
  EXPECT_FALSE(pace.Training(kStart));
  pace.Heard(0, 100, kStart);
  pace.Heard(0, 100, kStart + kWork);
  pace.Heard(1, 7, kStart + kWork);  // the count of another owner
  EXPECT_FALSE(pace.Training(kStart + kWork));
  EXPECT_EQ(pace.PauseAfter(kWork, kStart + kWork), absl::ZeroDuration());
}

TEST(SavePace, AStepOfAnyOwnerMakesItPause) {
  SavePace pace(0.2);
  pace.Heard(0, 100, kStart);
  pace.Heard(1, 7, kStart);
  pace.Heard(1, 8, kStart + kWork);
  EXPECT_EQ(pace.PauseAfter(kWork, kStart + kWork), 4 * kWork);
  EXPECT_EQ(pace.PauseAfter(absl::Hours(1), kStart + kWork), SavePace::kLongestPause);
}

// Training counts as active between steps that are further apart than the exchanges of a save.
TEST(SavePace, TrainingGoesOnBetweenItsSteps) {
  SavePace pace(0.5);
  pace.Heard(0, 1, kStart);
  pace.Heard(0, 2, kStart);
  absl::Time now = kStart + SavePace::kStandstill - kWork;
  pace.Heard(0, 2, now);
  EXPECT_EQ(pace.PauseAfter(kWork, now), kWork);
  now += kWork;
  EXPECT_EQ(pace.PauseAfter(kWork, now), absl::ZeroDuration());
  pace.Heard(0, 3, now);
  EXPECT_EQ(pace.PauseAfter(kWork, now), kWork);
}

TEST(SavePace, AllOfTheTime) {
  SavePace pace(1);
  pace.Heard(0, 1, kStart);
  pace.Heard(0, 2, kStart);
  EXPECT_TRUE(pace.Training(kStart));
  EXPECT_EQ(pace.PauseAfter(kWork, kStart), absl::ZeroDuration());
}

}  // namespace
}  // namespace psd
