#include "core/optim/functional/option_table.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/nearest_name.h"

namespace psd::optim {
namespace {

bool InRange(OptionRule::Range range, double value) {
  switch (range) {
    case OptionRule::Range::kFinite:
      return std::isfinite(value);
    case OptionRule::Range::kNotNegative:
      return std::isfinite(value) && value >= 0;
    case OptionRule::Range::kBelowOne:
      return value >= 0 && value < 1;
    case OptionRule::Range::kUnit:
      return value >= 0 && value <= 1;
    case OptionRule::Range::kInsideUnit:
      return value > 0 && value < 1;
    case OptionRule::Range::kAboveOne:
      return std::isfinite(value) && value > 1;
    case OptionRule::Range::kFlag:
      return value == 0 || value == 1;
  }
  return false;
}

const char* RangeText(OptionRule::Range range) {
  switch (range) {
    case OptionRule::Range::kFinite:
      return "finite";
    case OptionRule::Range::kNotNegative:
      return "finite and at least 0";
    case OptionRule::Range::kBelowOne:
      return "at least 0 and below 1";
    case OptionRule::Range::kUnit:
      return "at least 0 and at most 1";
    case OptionRule::Range::kInsideUnit:
      return "above 0 and below 1";
    case OptionRule::Range::kAboveOne:
      return "finite and above 1";
    case OptionRule::Range::kFlag:
      return "0 or 1";
  }
  return "";
}

absl::Status UnknownOption(const OptimizerSpec& spec, const std::string& name,
                           const std::vector<OptionRule>& rules) {
  NearestNameFinder finder(name);
  std::string known;
  for (const OptionRule& rule : rules) {
    finder.Consider(rule.name);
    absl::StrAppend(&known, known.empty() ? "" : ", ", rule.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(spec.type, " has no option '", name, "'",
                                                 DidYouMean(finder.nearest()), " (options: ", known,
                                                 ")"));
}

}  // namespace

absl::StatusOr<OptimizerSpec> CompleteSpec(const OptimizerSpec& spec,
                                           const std::vector<OptionRule>& rules) {
  OptimizerSpec complete;
  complete.type = spec.type;
  for (const OptionRule& rule : rules) complete.options[rule.name] = rule.initial;
  for (const auto& [name, value] : spec.options) {
    const auto rule = std::find_if(rules.begin(), rules.end(),
                                   [&, n = &name](const OptionRule& r) { return r.name == *n; });
    if (rule == rules.end()) return UnknownOption(spec, name, rules);
    if (!InRange(rule->range, value)) {
      return absl::InvalidArgumentError(absl::StrCat(spec.type, ": ", name, " = ", value,
                                                     ", but it must be ", RangeText(rule->range)));
    }
    complete.options[name] = value;
  }
  return complete;
}

}  // namespace psd::optim
