#pragma once

// The optimizer type "rprop". Options: "lr", "etaminus", "etaplus", "step_size_min",
// "step_size_max", "maximize", "stochastic_rounding". State: "prev", and "step_size", which starts
// at lr. The formula is in kernels/optim/rprop.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewRprop(const OptimizerSpec& spec);

}  // namespace psd::optim
