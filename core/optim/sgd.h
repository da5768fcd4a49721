#pragma once

// SGD: "lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"; formula in
// kernels/optim_sgd.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewSgd(const OptimizerSpec& spec);

}  // namespace psd::optim
