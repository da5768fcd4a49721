#pragma once

// OptimizerSettings as plain numbers by name, for files.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/optim/options/optimizer_config.h"

namespace psd::optim {

// "schedule.kind", "schedule.period", …, "mode.staleness": what is not at its default.
std::map<std::string, double> SettingsFields(const OptimizerSettings& settings);

// Errors: INVALID_ARGUMENT for an unknown name, a number that the field cannot hold, and what
// OptimizerSettings::Check refuses.
absl::StatusOr<OptimizerSettings> SettingsFromFields(const std::map<std::string, double>& fields);

}  // namespace psd::optim
