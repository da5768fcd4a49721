#pragma once

// SGD: "lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize",
// "stochastic_rounding"; formula in kernels/optim/sgd.h. State: "momentum_buffer" with momentum.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewSgd(const OptimizerSpec& spec);

}  // namespace psd::optim
