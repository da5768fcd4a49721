#pragma once

// The optimizer type "adamax". Options: "lr", "beta1", "beta2", "eps", "weight_decay", "maximize",
// "stochastic_rounding". State: "exp_avg", "exp_inf". The formula is in kernels/optim/adamax.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamax(const OptimizerSpec& spec);

}  // namespace psd::optim
