#pragma once

// The optimizer type "adagrad". Options: "lr", "lr_decay", "weight_decay",
// "initial_accumulator_value", "eps", "maximize", "stochastic_rounding". State: "sum", which starts
// at the initial accumulator value. The formula is in kernels/optim/adagrad.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdagrad(const OptimizerSpec& spec);

}  // namespace psd::optim
