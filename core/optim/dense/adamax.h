#pragma once

// Adamax: "lr", "beta1", "beta2", "eps", "weight_decay", "maximize",
// "stochastic_rounding"; formula in kernels/optim/adamax.h. State: "exp_avg", "exp_inf".

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamax(const OptimizerSpec& spec);

}  // namespace psd::optim
