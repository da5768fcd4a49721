#pragma once

// The options of one type of optimizer as a table: names, defaults, ranges.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

struct OptionRule {
  enum class Range {
    kFinite,       // any finite number
    kNotNegative,  // finite, at least 0
    kBelowOne,     // at least 0, below 1
    kUnit,         // at least 0, at most 1
    kInsideUnit,   // above 0, below 1
    kAboveOne,     // finite, above 1
    kFlag,         // 0 or 1
  };
  std::string name;
  double initial = 0;
  Range range = Range::kFinite;
};

// Returns `spec` with the defaults of `rules` for the options that it does not set. Errors:
// INVALID_ARGUMENT for an unknown option (naming the nearest known one) or an option out of its
// range (naming the range).
absl::StatusOr<OptimizerSpec> CompleteSpec(const OptimizerSpec& spec,
                                           const std::vector<OptionRule>& rules);

}  // namespace psd::optim
