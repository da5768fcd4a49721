#pragma once

// Adadelta: "lr", "rho", "eps", "weight_decay", "maximize",
// "stochastic_rounding"; formula in kernels/optim/adadelta.h. State: "square_avg", "acc_delta".

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdadelta(const OptimizerSpec& spec);

}  // namespace psd::optim
