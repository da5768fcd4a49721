#pragma once

// The optimizer type "adadelta". Options: "lr", "rho", "eps", "weight_decay", "maximize",
// "stochastic_rounding". State: "square_avg", "acc_delta". The formula is in
// kernels/optim/adadelta.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdadelta(const OptimizerSpec& spec);

}  // namespace psd::optim
