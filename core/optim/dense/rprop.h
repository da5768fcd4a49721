#pragma once

// Rprop: "lr", "etaminus", "etaplus", "step_size_min", "step_size_max", "maximize",
// "stochastic_rounding"; formula in kernels/optim/rprop.h. State: "prev", and "step_size" which
// starts at lr.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewRprop(const OptimizerSpec& spec);

}  // namespace psd::optim
