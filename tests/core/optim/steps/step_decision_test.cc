#include "core/optim/steps/step_decision.h"

#include <cmath>
#include <limits>

#include "core/optim/options/loss_scale.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(StepDecisionTest, APlainStepNeedsNoMeasure) {
  StepWishes wishes;
  EXPECT_TRUE(wishes.Check().ok());
  EXPECT_FALSE(wishes.NeedsMeasure());
  EXPECT_EQ(DecideStep(wishes, {}).terms, StepTerms{});
}

// For the gradients [3, 4] and [12], clip_grad_norm_(…, 6.5) of torch returns 13 and leaves
// [1.5, 2] and [6].
TEST(StepDecisionTest, NormIsOverAllOwners) {
  StepWishes wishes;
  wishes.clip_norm = 6.5;
  const StepDecision decision = DecideStep(wishes, {25, 144});
  EXPECT_DOUBLE_EQ(decision.gradient_norm, 13);
  EXPECT_DOUBLE_EQ(decision.terms.gradient_scale, 6.5 / (13 + 1e-6));
  wishes.clip_norm = 14;
  EXPECT_EQ(DecideStep(wishes, {25, 144}).terms.gradient_scale, 1);
  wishes.clip_norm = 0;
  EXPECT_EQ(DecideStep(wishes, {25, 144}).terms.gradient_scale, 0);
  EXPECT_DOUBLE_EQ(DecideStep(wishes, {}).gradient_norm, 0);
}

TEST(StepDecisionTest, LossScaleAndMeanDivideBeforeClipping) {
  StepWishes wishes;
  wishes.loss_scale = 4;
  wishes.mean = true;
  wishes.contexts = 2;
  EXPECT_EQ(DecideStep(wishes, {}).terms.gradient_scale, 0.125);
  wishes.clip_norm = 1;
  const StepDecision decision = DecideStep(wishes, {64});
  EXPECT_DOUBLE_EQ(decision.gradient_norm, 1);
  EXPECT_NEAR(decision.terms.gradient_scale, 0.125, 1e-6);
}

TEST(StepDecisionTest, OverflowAnywhereSkipsEverywhere) {
  StepWishes wishes;
  wishes.loss_scale = 4;
  wishes.detect_overflow = true;
  EXPECT_FALSE(DecideStep(wishes, {1, 2}).terms.overflow);
  EXPECT_TRUE(DecideStep(wishes, {1, kInfinity}).terms.overflow);
  EXPECT_TRUE(DecideStep(wishes, {std::nan(""), 1}).terms.overflow);
  EXPECT_EQ(DecideStep(wishes, {1}).terms.loss_scale, 4);
}

TEST(StepDecisionTest, BadWishesAreRefused) {
  const auto refused = [](void (*spoil)(StepWishes&)) {
    StepWishes wishes;
    spoil(wishes);
    return wishes.Check().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](StepWishes& w) { w.clip_value = -1; }));
  EXPECT_TRUE(refused([](StepWishes& w) { w.clip_norm = std::nan(""); }));
  EXPECT_TRUE(refused([](StepWishes& w) { w.loss_scale = -2; }));
  EXPECT_TRUE(refused([](StepWishes& w) { w.loss_scale = kInfinity; }));
  EXPECT_TRUE(refused([](StepWishes& w) { w.loss_scale = 1e-310; }));
  EXPECT_TRUE(refused([](StepWishes& w) { w.contexts = 0; }));
}

// The rules are those of torch's GradScaler.
TEST(LossScaleTest, GrowsAfterAnIntervalAndBacksOffAtOnce) {
  LossScaling rules = LossScaling::Dynamic(1024);
  rules.growth_interval = 3;
  LossScale scale(rules);
  for (int i = 0; i < 2; ++i) scale.Record(1024, false);
  EXPECT_EQ(scale.scale(), 1024);
  scale.Record(1024, true);
  EXPECT_EQ(scale.scale(), 512);
  for (int i = 0; i < 3; ++i) scale.Record(512, false);
  EXPECT_EQ(scale.scale(), 1024);
}

TEST(LossScaleTest, LateStepsOfAnotherScaleSayNothing) {
  LossScale scale(LossScaling::Dynamic(1024));
  scale.Record(1024, true);
  scale.Record(1024, true);  // from a trainer that did not know the new scale yet
  EXPECT_EQ(scale.scale(), 512);
}

TEST(LossScaleTest, StaysWithinBounds) {
  LossScaling rules = LossScaling::Dynamic(0x1p127);
  rules.growth_interval = 1;
  LossScale scale(rules);
  scale.Record(0x1p127, false);
  EXPECT_EQ(scale.scale(), 0x1p127);
  for (int i = 0; i < 1000; ++i) scale.Record(scale.scale(), true);
  EXPECT_GT(scale.scale(), 0);
}

TEST(LossScaleTest, BadRulesAreRefused) {
  LossScaling rules = LossScaling::Dynamic();
  EXPECT_TRUE(rules.Check().ok());
  rules.backoff_factor = 1;
  EXPECT_FALSE(rules.Check().ok());
  rules = LossScaling::Dynamic(-1);
  EXPECT_FALSE(rules.Check().ok());
  EXPECT_TRUE(LossScaling().Check().ok());
}

}  // namespace
}  // namespace psd::optim
