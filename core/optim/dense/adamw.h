#pragma once

// The optimizer type "adamw": Adam with decoupled weight decay. It has Adam's options and state;
// "weight_decay" is 0.01 by default.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamW(const OptimizerSpec& spec);

}  // namespace psd::optim
