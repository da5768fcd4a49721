#pragma once

// The optimizer type "sgd". Options: "lr", "momentum", "dampening", "weight_decay", "nesterov",
// "maximize", "stochastic_rounding". State: with momentum, "momentum_buffer". The formula is in
// kernels/optim/sgd.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewSgd(const OptimizerSpec& spec);

}  // namespace psd::optim
