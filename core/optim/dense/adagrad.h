#pragma once

// Adagrad: "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize",
// "stochastic_rounding"; formula in kernels/optim/adagrad.h. State: "sum", which starts at the
// initial accumulator value.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdagrad(const OptimizerSpec& spec);

}  // namespace psd::optim
