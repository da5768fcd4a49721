#pragma once

// Row-wise Adagrad, for rows only: "lr", "lr_decay", "weight_decay" (0), "eps",
// "initial_accumulator_value", "maximize". One accumulator per row: a 1 / width of Adagrad's
// memory.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewRowwiseAdagrad(const OptimizerSpec& spec);

}  // namespace psd::optim
