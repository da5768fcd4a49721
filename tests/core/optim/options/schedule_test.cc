#include "core/optim/options/schedule.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

std::vector<double> Rates(const Schedule& schedule, uint64_t steps) {
  std::vector<double> rates;
  for (uint64_t t = 0; t < steps; ++t) rates.push_back(schedule.LearningRate(0.5, t));
  return rates;
}

// The expected numbers are those of torch.optim.lr_scheduler (1.13) from a learning rate of 0.5.
void ExpectRates(const Schedule& schedule, const std::vector<double>& expected) {
  EXPECT_TRUE(schedule.Check().ok()) << schedule.Check();
  EXPECT_THAT(Rates(schedule, expected.size()), Pointwise(DoubleNear(1e-11), expected))
      << schedule.ToString();
}

TEST(ScheduleTest, ConstantByDefault) {
  ExpectRates(Schedule::Constant(), {0.5, 0.5, 0.5});
  EXPECT_TRUE(Schedule().IsConstant());
}

TEST(ScheduleTest, StepIsStepLR) {
  ExpectRates(Schedule::Step(3, 0.1), {0.5, 0.5, 0.5, 0.05, 0.05, 0.05, 0.005, 0.005});
}

TEST(ScheduleTest, ExponentialIsExponentialLR) {
  ExpectRates(Schedule::Exponential(0.9), {0.5, 0.45, 0.405, 0.3645, 0.32805, 0.295245});
}

TEST(ScheduleTest, CosineIsCosineAnnealingLR) {
  ExpectRates(Schedule::Cosine(5, 0.1), {0.5, 0.461803398875, 0.361803398875, 0.238196601125,
                                         0.138196601125, 0.1, 0.138196601125, 0.238196601125});
}

TEST(ScheduleTest, WarmupIsLinearLR) {
  ExpectRates(Schedule::Constant().WithWarmup(4, 0.25),
              {0.125, 0.21875, 0.3125, 0.40625, 0.5, 0.5, 0.5});
}

TEST(ScheduleTest, WarmupThenAnotherIsSequentialLR) {
  ExpectRates(Schedule::Exponential(0.5).WithWarmup(3, 0.1),
              {0.05, 0.2, 0.35, 0.5, 0.25, 0.125, 0.0625});
}

TEST(ScheduleTest, OneCycleIsOneCycleLR) {
  ExpectRates(Schedule::OneCycle(10),
              {0.02, 0.26, 0.5, 0.475242316007, 0.405872826975, 0.305631010968, 0.194370989032,
               0.0941291730251, 0.0247596839933, 2e-06});
  Schedule linear = Schedule::OneCycle(8);
  linear.rise = 0.5;
  linear.initial_divisor = 10;
  linear.final_divisor = 100;
  linear.linear = true;
  // After the last step, PyTorch fails with an error, and psd keeps the last rate.
  ExpectRates(linear, {0.05, 0.2, 0.35, 0.5, 0.375125, 0.25025, 0.125375, 0.0005, 0.0005});
}

TEST(ScheduleTest, OneCycleMovesTheMomentumTheOtherWay) {
  const auto momenta = [](const Schedule& schedule, uint64_t steps) {
    EXPECT_TRUE(schedule.Check().ok()) << schedule.Check();
    std::vector<double> values;
    for (uint64_t t = 0; t < steps; ++t) values.push_back(schedule.Momentum(t));
    return values;
  };
  Schedule schedule = Schedule::OneCycle(10);
  schedule.cycle_momentum = true;
  EXPECT_THAT(
      momenta(schedule, 11),
      Pointwise(DoubleNear(1e-11), {0.95, 0.9, 0.85, 0.854951556605, 0.868825509907, 0.888873953302,
                                    0.911126046698, 0.931174490093, 0.945048443395, 0.95, 0.95}));
  EXPECT_THAT(momenta(schedule.WithWarmup(2), 4),
              Pointwise(DoubleNear(1e-11), {0.95, 0.95, 0.95, 0.9}));
  Schedule linear = Schedule::OneCycle(8);
  linear.rise = 0.5;
  linear.linear = true;
  linear.cycle_momentum = true;
  linear.lowest_momentum = 0.7;
  linear.highest_momentum = 0.9;
  EXPECT_THAT(momenta(linear, 8), Pointwise(DoubleNear(1e-11), {0.9, 0.833333333333, 0.766666666667,
                                                                0.7, 0.75, 0.8, 0.85, 0.9}));
}

TEST(ScheduleTest, OneCyclesWithoutARiseAreFinite) {
  for (uint64_t period : {1, 2, 3}) {
    for (double rise : {0.0, 0.5, 1.0}) {
      Schedule schedule = Schedule::OneCycle(period);
      schedule.rise = rise;
      for (double rate : Rates(schedule, 5)) EXPECT_TRUE(rate >= 0 && rate <= 0.5) << rate;
    }
  }
}

TEST(ScheduleTest, BadFieldsAreNamedWithTheirRange) {
  const auto message = [](const Schedule& schedule) {
    EXPECT_EQ(schedule.Check().code(), absl::StatusCode::kInvalidArgument);
    return std::string(schedule.Check().message());
  };
  EXPECT_THAT(message(Schedule::Step(0)), HasSubstr("period = 0"));
  EXPECT_THAT(message(Schedule::Exponential(1.5)), HasSubstr("gamma = 1.5"));
  EXPECT_THAT(message(Schedule::Exponential(std::nan(""))), HasSubstr("gamma"));
  EXPECT_THAT(message(Schedule::Cosine(3, -1)), HasSubstr("lowest = -1"));
  EXPECT_THAT(message(Schedule().WithWarmup(3, 2)), HasSubstr("warmup_start = 2"));
  Schedule cycled = Schedule::OneCycle(5);
  cycled.cycle_momentum = true;
  cycled.highest_momentum = 1;
  EXPECT_THAT(message(cycled), HasSubstr("highest_momentum = 1"));
  cycled.lowest_momentum = 0;
  EXPECT_THAT(message(cycled), HasSubstr("lowest_momentum = 0"));
  cycled = Schedule::Cosine(3);
  cycled.cycle_momentum = true;
  EXPECT_THAT(message(cycled), HasSubstr("cycle_momentum"));
  Schedule unknown;
  unknown.kind = static_cast<Schedule::Kind>(77);
  EXPECT_THAT(message(unknown), HasSubstr("kind = 77"));
}

TEST(ScheduleTest, PrintsWhatItIs) {
  EXPECT_EQ(Schedule::Cosine(100).WithWarmup(10, 0.1).ToString(),
            "cosine(period=100, lowest=0) after warmup(10, from 0.1)");
  Schedule cycled = Schedule::OneCycle(9);
  cycled.cycle_momentum = true;
  EXPECT_THAT(cycled.ToString(), HasSubstr("momentum=0.95 to 0.85)"));
}

}  // namespace
}  // namespace psd::optim
