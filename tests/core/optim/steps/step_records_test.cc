#include "core/optim/steps/step_records.h"

#include <cstdint>
#include <optional>

#include "core/base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

using Answer = StepRecords::Answer;

constexpr GlobalId kSession{5, 1};

Answer Find(const StepRecords& records, uint64_t counter) {
  return records.Find(kSession, {5, counter});
}

TEST(StepRecordsTest, AnEndedStepIsKnownUntilItsTrainerHasEndedItToo) {
  StepRecords records;
  EXPECT_EQ(Find(records, 3), Answer::kNew);
  records.End(kSession, {5, 3});
  records.End(kSession, {5, 7});
  EXPECT_EQ(Find(records, 3), Answer::kEnded);
  EXPECT_EQ(Find(records, 5), Answer::kNew);  // the step has not ended
  records.Acknowledge(5, 7);
  EXPECT_EQ(Find(records, 3), Answer::kTooOld);
  EXPECT_EQ(Find(records, 5), Answer::kTooOld);
  EXPECT_EQ(Find(records, 7), Answer::kEnded);
  EXPECT_EQ(records.remembered(), 1u);
  records.Acknowledge(5, 2);  // from a message that was overtaken
  EXPECT_EQ(Find(records, 3), Answer::kTooOld);
}

TEST(StepRecordsTest, WhatCannotBeToldIsRefused) {
  StepRecords records;
  for (uint64_t counter = 1; counter <= kRememberedSteps + 1; ++counter)
    records.End(kSession, {5, counter});
  EXPECT_EQ(records.remembered(), kRememberedSteps);
  EXPECT_EQ(Find(records, 1), Answer::kTooOld);
  EXPECT_EQ(Find(records, 2), Answer::kEnded);
}

TEST(StepRecordsTest, NothingOfAnEndedSessionIsApplied) {
  StepRecords records;
  records.End(kSession, {5, 3});
  records.EndSession(kSession);
  EXPECT_EQ(Find(records, 4), Answer::kSessionEnded);
  EXPECT_EQ(records.remembered(), 0u);
  // The next session of the same trainer can step, and steps of the old one are not applied again.
  EXPECT_EQ(records.Find({5, 2}, {5, 3}), Answer::kTooOld);
  EXPECT_EQ(records.Find({5, 2}, {5, 4}), Answer::kNew);
  // A late notice about an old session does not end a newer one.
  records.End({5, 2}, {5, 4});
  records.EndSession({5, 1});
  EXPECT_NE(records.Find({5, 2}, {5, 5}), Answer::kSessionEnded);
}

TEST(StepRecordsTest, ALateNoticeAboutAnOldSessionLeavesTheStepsOfTheNextOne) {
  constexpr GlobalId kNext{5, 2};
  StepRecords records;
  records.End(kSession, {5, 3});
  // Step 9 of the next session has overtaken step 4 when the notice of the first session's end
  // arrives.
  records.End(kNext, {5, 9});
  records.EndSession(kSession);
  EXPECT_EQ(records.Find(kNext, {5, 3}), Answer::kTooOld);
  EXPECT_EQ(records.Find(kNext, {5, 4}), Answer::kNew);
  EXPECT_EQ(records.Find(kNext, {5, 9}), Answer::kEnded);
  // The trainer is not taken for one that has departed, either.
  for (uint64_t i = 0; i < kRememberedTrainers; ++i) records.EndSession({100 + i, 1});
  EXPECT_EQ(records.Find(kNext, {5, 9}), Answer::kEnded);
  records.EndSession(kNext);
  EXPECT_EQ(records.Find({5, 3}, {5, 4}), Answer::kTooOld);
}

TEST(StepRecordsTest, DepartedTrainersAreForgottenWithinABoundAndThoseWhoCameBackAreNot) {
  StepRecords records;
  records.End(kSession, {5, 3});
  records.EndSession(kSession);
  records.EndSession({6, 1});
  records.End({5, 2}, {5, 9});
  for (uint64_t i = 0; i < kRememberedTrainers; ++i) records.EndSession({100 + i, 1});
  EXPECT_EQ(records.Find({5, 2}, {5, 9}), Answer::kEnded);
  EXPECT_TRUE(records.Knows(5));
  EXPECT_FALSE(records.Knows(6));
}

TEST(StepRecordsTest, ATrainerThatDepartsAgainIsRememberedFromItsLastDeparture) {
  StepRecords records;
  records.EndSession(kSession);
  for (uint64_t i = 1; i < kRememberedTrainers; ++i) records.EndSession({100 + i, 1});
  records.End({5, 2}, {5, 9});
  records.EndSession({5, 2});  // its first departure is the oldest
  EXPECT_EQ(records.Find({5, 3}, {5, 9}), Answer::kTooOld);
  for (uint64_t i = 1; i < kRememberedTrainers; ++i) records.EndSession({10'000 + i, 1});
  EXPECT_TRUE(records.Knows(5));
  records.EndSession({6, 1});
  EXPECT_FALSE(records.Knows(5));
}

TEST(StepRecordsTest, AStepIsExpectedWhileItsTrainerIsHereAndTheStepHasNotEnded) {
  StepRecords records;
  EXPECT_FALSE(records.Expects({5, 3})) << "its trainer was never here";
  records.End({5, 4});
  EXPECT_FALSE(records.Knows(5));
  records.Meet(kSession);
  EXPECT_TRUE(records.Expects({5, 3}));
  records.End({5, 3});
  records.End({5, 3});
  EXPECT_FALSE(records.Expects({5, 3}));
  records.Acknowledge(5, 7);
  EXPECT_FALSE(records.Expects({5, 6}));
  EXPECT_TRUE(records.Expects({5, 7}));
  EXPECT_FALSE(records.HasEnded(kSession));
  records.EndSession(kSession);
  EXPECT_TRUE(records.HasEnded(kSession));
  EXPECT_FALSE(records.HasEnded({5, 2}));
  EXPECT_FALSE(records.Expects({5, 7}));
  records.Meet(kSession);
  EXPECT_FALSE(records.Expects({5, 7})) << "its session has ended for ever";
  EXPECT_EQ(records.LastSession(5), kSession);
  EXPECT_EQ(records.LastSession(6), std::nullopt);
  records.Meet({5, 2});
  EXPECT_EQ(records.LastSession(5), (GlobalId{5, 2}));
  EXPECT_TRUE(records.Expects({5, 7}));
}

}  // namespace
}  // namespace psd::optim
