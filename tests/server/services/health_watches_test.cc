// The decisions for Watch calls, without actual calls.

#include "server/services/health_watches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace psd::server {
namespace {

using grpc::StatusCode;
using grpc::health::v1::HealthCheckResponse;
using Step = HealthWatches::Step;

class HealthWatchesTest : public ::testing::Test {
 protected:
  // Returns a watch that has begun and whose first write is complete.
  HealthWatches::Watch Watching(const std::string& service) {
    HealthWatches::Watch watch = NewWatch();
    watches_.Begin(watch, service);
    EXPECT_EQ(watches_.Completed(watch, true).kind, Step::kNothing);
    return watch;
  }

  HealthWatches::Watch NewWatch() {
    HealthWatches::Watch watch = &calls_[used_++];
    watches_.Add(watch);
    return watch;
  }

  HealthWatches watches_;

 private:
  std::vector<char> calls_ = std::vector<char>(HealthWatches::kMaxWatches + 1);
  size_t used_ = 0;
};

TEST_F(HealthWatchesTest, TheLatestStateIsWrittenWhenTheWriteBeforeIsOver) {
  HealthWatches::Watch watch = NewWatch();
  Step step = watches_.Begin(watch, "a");
  EXPECT_EQ(step.kind, Step::kWrite);
  EXPECT_EQ(step.state, HealthCheckResponse::SERVICE_UNKNOWN);
  EXPECT_THAT(watches_.Set("a", true), ::testing::IsEmpty());
  EXPECT_THAT(watches_.Set("a", false), ::testing::IsEmpty());

  step = watches_.Completed(watch, true);
  EXPECT_EQ(step.kind, Step::kWrite);
  EXPECT_EQ(step.state, HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(watches_.Completed(watch, true).kind, Step::kNothing);
}

TEST_F(HealthWatchesTest, OnlyChangesOfTheWatchedServiceAreTold) {
  HealthWatches::Watch watch = Watching("a");
  EXPECT_THAT(watches_.Set("b", true), ::testing::IsEmpty());
  HealthWatches::Steps steps = watches_.Set("a", true);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].first, watch);
  EXPECT_EQ(steps[0].second.state, HealthCheckResponse::SERVING);
  EXPECT_EQ(watches_.Completed(watch, true).kind, Step::kNothing);
  EXPECT_THAT(watches_.Set("a", true), ::testing::IsEmpty());
}

TEST_F(HealthWatchesTest, TheFinishWaitsForTheWriteAndIsTheLastStepButOne) {
  HealthWatches::Watch watch = NewWatch();
  EXPECT_EQ(watches_.Begin(watch, "a").kind, Step::kWrite);
  EXPECT_EQ(watches_.Done(watch).kind, Step::kNothing);
  EXPECT_EQ(watches_.Completed(watch, false).kind, Step::kFinish);
  EXPECT_THAT(watches_.Set("a", true), ::testing::IsEmpty());
  EXPECT_EQ(watches_.Completed(watch, false).kind, Step::kForget);
  EXPECT_THAT(watches_.Stop(), ::testing::IsEmpty());
}

TEST_F(HealthWatchesTest, AFinishedWatchIsForgottenWhenItIsDone) {
  HealthWatches::Watch watch = Watching("a");
  HealthWatches::Steps steps = watches_.Stop();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].second.kind, Step::kFinish);
  EXPECT_EQ(steps[0].second.end.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(watches_.Completed(watch, true).kind, Step::kNothing);
  EXPECT_EQ(watches_.Done(watch).kind, Step::kForget);
}

TEST_F(HealthWatchesTest, AWatchThatIsBusyAtTheStopStillTellsItsLastState) {
  watches_.Set("a", true);
  HealthWatches::Watch watch = NewWatch();
  EXPECT_EQ(watches_.Begin(watch, "a").kind, Step::kWrite);
  EXPECT_THAT(watches_.Set("a", false), ::testing::IsEmpty());
  EXPECT_THAT(watches_.Stop(), ::testing::IsEmpty());
  const Step last = watches_.Completed(watch, true);
  EXPECT_EQ(last.kind, Step::kWrite);
  EXPECT_EQ(last.state, HealthCheckResponse::NOT_SERVING);
  const Step end = watches_.Completed(watch, true);
  EXPECT_EQ(end.kind, Step::kFinish);
  EXPECT_EQ(end.end.error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(HealthWatchesTest, AClientThatGoesAtOnceMayBeDoneBeforeItsWatchBegins) {
  HealthWatches::Watch watch = NewWatch();
  EXPECT_EQ(watches_.Done(watch).kind, Step::kNothing);
  Step step = watches_.Begin(watch, "a");
  EXPECT_EQ(step.kind, Step::kFinish);
  EXPECT_EQ(step.end.error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(watches_.Completed(watch, true).kind, Step::kForget);
}

TEST_F(HealthWatchesTest, WhatBeginsAfterTheStopFinishesAtOnce) {
  EXPECT_THAT(watches_.Stop(), ::testing::IsEmpty());
  EXPECT_EQ(watches_.Begin(NewWatch(), "a").end.error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(HealthWatchesTest, ARequestInVainIsNeverTold) {
  watches_.Remove(NewWatch());
  EXPECT_THAT(watches_.Set("", true), ::testing::IsEmpty());
  EXPECT_THAT(watches_.Stop(), ::testing::IsEmpty());
}

TEST_F(HealthWatchesTest, TooManyWatchesAndTooLongNamesAreRefused) {
  Step step = watches_.Begin(NewWatch(), std::string(HealthWatches::kMaxServiceBytes + 1, 'x'));
  EXPECT_EQ(step.kind, Step::kFinish);
  EXPECT_EQ(step.end.error_code(), StatusCode::INVALID_ARGUMENT);
  for (size_t i = 1; i < HealthWatches::kMaxWatches; ++i) Watching("a");
  step = watches_.Begin(NewWatch(), "a");
  EXPECT_EQ(step.kind, Step::kFinish);
  EXPECT_EQ(step.end.error_code(), StatusCode::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace psd::server
