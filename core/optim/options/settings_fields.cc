#include "core/optim/options/settings_fields.h"

#include <cmath>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::optim {
namespace {

// Every whole number up to this one is exact in a double: 2^53.
constexpr double kMaxWhole = 9007199254740992.0;

// Calls `visit(name, field)` for every field of `settings`.
template <typename Settings, typename Visitor>
void VisitFields(Settings& settings, Visitor visit) {
  visit("schedule.kind", settings.schedule.kind);
  visit("schedule.period", settings.schedule.period);
  visit("schedule.gamma", settings.schedule.gamma);
  visit("schedule.lowest", settings.schedule.lowest);
  visit("schedule.rise", settings.schedule.rise);
  visit("schedule.initial_divisor", settings.schedule.initial_divisor);
  visit("schedule.final_divisor", settings.schedule.final_divisor);
  visit("schedule.linear", settings.schedule.linear);
  visit("schedule.cycle_momentum", settings.schedule.cycle_momentum);
  visit("schedule.lowest_momentum", settings.schedule.lowest_momentum);
  visit("schedule.highest_momentum", settings.schedule.highest_momentum);
  visit("schedule.warmup_steps", settings.schedule.warmup_steps);
  visit("schedule.warmup_start", settings.schedule.warmup_start);
  visit("loss_scaling.initial", settings.loss_scaling.initial);
  visit("loss_scaling.growth_factor", settings.loss_scaling.growth_factor);
  visit("loss_scaling.backoff_factor", settings.loss_scaling.backoff_factor);
  visit("loss_scaling.growth_interval", settings.loss_scaling.growth_interval);
  visit("mode.kind", settings.mode.kind);
  visit("mode.trainers", settings.mode.trainers);
  visit("mode.reduction", settings.mode.reduction);
  visit("mode.staleness", settings.mode.staleness);
  visit("mode.when_stale", settings.mode.when_stale);
  visit("mode.allow_unknown_versions", settings.mode.allow_unknown_versions);
}

// The largest whole number that a field of type T can hold. Not used for doubles.
template <typename T>
constexpr double Largest() {
  if constexpr (std::is_same_v<T, bool>) return 1;
  if constexpr (std::is_enum_v<T>) return 255;
  if constexpr (std::is_same_v<T, uint32_t>) return UINT32_MAX;
  return kMaxWhole;
}

std::map<std::string, double> AllFields(const OptimizerSettings& settings) {
  std::map<std::string, double> fields;
  VisitFields(settings, [&](const char* name, const auto& field) {
    fields[name] = static_cast<double>(field);
  });
  return fields;
}

}  // namespace

std::map<std::string, double> SettingsFields(const OptimizerSettings& settings) {
  const std::map<std::string, double> defaults = AllFields(OptimizerSettings{});
  std::map<std::string, double> changed;
  for (const auto& [name, value] : AllFields(settings))
    if (value != defaults.at(name)) changed[name] = value;
  return changed;
}

absl::StatusOr<OptimizerSettings> SettingsFromFields(const std::map<std::string, double>& fields) {
  const std::map<std::string, double> known = AllFields(OptimizerSettings{});
  for (const auto& [name, value] : fields) {
    if (known.count(name) == 0)
      return absl::InvalidArgumentError(absl::StrCat("unknown optimizer setting '", name, "'"));
  }
  OptimizerSettings settings;
  absl::Status status;
  VisitFields(settings, [&](const char* name, auto& field) {
    using Field = std::decay_t<decltype(field)>;
    auto found = fields.find(name);
    if (found == fields.end()) return;
    const double value = found->second;
    const bool whole = value >= 0 && value <= Largest<Field>() && value == std::floor(value);
    if (std::is_same_v<Field, double> ? std::isfinite(value) : whole) {
      field = static_cast<Field>(value);
    } else {
      status =
          absl::InvalidArgumentError(absl::StrCat("optimizer setting '", name, "' is ", value));
    }
  });
  PSD_RETURN_IF_ERROR(status);
  PSD_RETURN_IF_ERROR(settings.Check());
  return settings;
}

}  // namespace psd::optim
