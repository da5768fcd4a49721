#pragma once

// RMSprop: "lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize",
// "stochastic_rounding"; formula in kernels/optim/rmsprop.h. State: "square_avg", "momentum_buffer"
// with momentum, "grad_avg" if centered.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewRmsProp(const OptimizerSpec& spec);

}  // namespace psd::optim
