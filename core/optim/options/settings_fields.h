#pragma once

// Converts OptimizerSettings to numbers by name and back, for files.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/optim/options/optimizer_config.h"

namespace psd::optim {

// Returns the fields that differ from their defaults, by names such as "schedule.kind" and
// "mode.staleness".
std::map<std::string, double> SettingsFields(const OptimizerSettings& settings);

// Returns the settings with these fields, and with defaults for all others.
// Errors: INVALID_ARGUMENT for an unknown name, a number that the field cannot hold, and settings
// that OptimizerSettings::Check refuses.
absl::StatusOr<OptimizerSettings> SettingsFromFields(const std::map<std::string, double>& fields);

}  // namespace psd::optim
