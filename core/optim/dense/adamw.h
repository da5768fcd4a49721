#pragma once

// AdamW (decoupled decay): Adam's options, "weight_decay" 0.01 by default.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewAdamW(const OptimizerSpec& spec);

}  // namespace psd::optim
