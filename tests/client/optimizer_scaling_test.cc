// Clipping and loss scaling over several owners.

#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/optimizer_fixture.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

TEST_F(OptimizerTest, ClipsByNormOverAllOwnersAndByValue) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}));
  Context context = Collect(*trainer_, {{w_, 3}, {b_, 4}});  // two elements each
  const double norm = std::sqrt(50.0);
  StepOptions by_norm;
  by_norm.clip_norm = norm / 2;
  StepOutcome outcome = optimizer->StepDetailed(context, by_norm);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_DOUBLE_EQ(outcome.gradient_norm, norm);
  EXPECT_FLOAT_EQ(First(w_), 8.5f);
  EXPECT_FLOAT_EQ(First(b_), 8);
  StepOptions by_value;
  by_value.clip_value = 3.5;
  ASSERT_TRUE(optimizer->Step(context, by_value).ok());
  EXPECT_FLOAT_EQ(First(w_), 5.5f);
  EXPECT_FLOAT_EQ(First(b_), 4.5f);
  StepOptions bad;
  bad.clip_norm = -1;
  EXPECT_EQ(optimizer->Step(context, bad).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(OptimizerTest, GradientsWithoutANormAreRefusedBeforeAnythingChanges) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}));
  Context context = Collect(*trainer_, {{w_, 3}, {b_, std::numeric_limits<double>::infinity()}});
  StepOptions clip;
  clip.clip_norm = 1;
  absl::Status refused = optimizer->Step(context, clip);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("owner1"));
  EXPECT_EQ(First(w_), 10);
}

TEST_F(OptimizerTest, OverflowOnOneOwnerSkipsTheStepOnAll) {
  OptimizerSettings settings;
  settings.loss_scaling = LossScaling::Dynamic(8);
  settings.loss_scaling.growth_interval = 2;
  auto optimizer = Shared(*trainer_, settings);
  ASSERT_EQ(optimizer->LossScale(), 8);
  StepOptions scaled;
  scaled.loss_scale = 8;
  Context overflown = Collect(*trainer_, {{w_, 8}, {b_, std::numeric_limits<double>::infinity()}});
  StepOutcome outcome = optimizer->StepDetailed(overflown, scaled);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_TRUE(outcome.skipped);
  EXPECT_EQ(First(w_), 10);
  EXPECT_EQ(optimizer->LossScale(), 4);
  scaled.loss_scale = 4;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(optimizer->Step(Collect(*trainer_, {{w_, 4}, {b_, 8}}), scaled).ok());
  }
  EXPECT_EQ(First(w_), 8);
  EXPECT_EQ(First(b_), 6);
  EXPECT_EQ(optimizer->LossScale(), 8);
  auto other = StartOther("trainer1");
  EXPECT_EQ(Shared(*other, settings)->LossScale(), 8) << "a newcomer hears the present scale";
  EXPECT_EQ(optimizer->Step(Collect(*trainer_, {{w_, 1}})).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd
