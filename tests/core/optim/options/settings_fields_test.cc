#include "core/optim/options/settings_fields.h"

#include <limits>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace psd::optim {
namespace {

using Fields = std::map<std::string, double>;

TEST(SettingsFields, DefaultsAreNone) {
  EXPECT_TRUE(SettingsFields(OptimizerSettings{}).empty());
  auto settings = SettingsFromFields({});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->ToString(), OptimizerSettings{}.ToString());
}

TEST(SettingsFields, EverythingComesBack) {
  OptimizerSettings settings;
  settings.schedule = Schedule::OneCycle(1000).WithWarmup(10, 0.125);
  settings.schedule.linear = true;
  settings.schedule.cycle_momentum = true;
  settings.schedule.lowest_momentum = 0.25;
  settings.loss_scaling = LossScaling::Dynamic(512);
  settings.mode =
      UpdateMode::BoundedStaleness(3, UpdateMode::WhenStale::kWait).WithUnknownVersions();
  const Fields fields = SettingsFields(settings);
  EXPECT_EQ(fields.at("schedule.linear"), 1);
  EXPECT_EQ(fields.at("mode.staleness"), 3);
  auto again = SettingsFromFields(fields);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToString(), settings.ToString());
}

TEST(SettingsFields, WhatNoFieldHolds) {
  for (const Fields& fields :
       {Fields{{"mode.kinds", 1}}, Fields{{"mode.kind", 256}}, Fields{{"mode.kind", 99}},
        Fields{{"mode.trainers", -1}}, Fields{{"mode.kind", 2}, {"mode.trainers", 1.5}},
        Fields{{"mode.trainers", 1e12}}, Fields{{"schedule.linear", 2}},
        Fields{{"schedule.gamma", std::numeric_limits<double>::infinity()}},
        Fields{{"schedule.period", 1e300}},
        Fields{{"schedule.period", std::numeric_limits<double>::quiet_NaN()}}}) {
    EXPECT_EQ(SettingsFromFields(fields).status().code(), absl::StatusCode::kInvalidArgument)
        << fields.begin()->first << " " << fields.begin()->second;
  }
}

}  // namespace
}  // namespace psd::optim
