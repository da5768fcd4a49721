#pragma once

// The optimizer type "rmsprop". Options: "lr", "alpha", "eps", "weight_decay", "momentum",
// "centered", "maximize", "stochastic_rounding". State: "square_avg"; with momentum also
// "momentum_buffer"; if centered also "grad_avg". The formula is in kernels/optim/rmsprop.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewRmsProp(const OptimizerSpec& spec);

}  // namespace psd::optim
