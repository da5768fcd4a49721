#pragma once

// The optimizer type "rowwise_adagrad", for rows only. Options: "lr", "lr_decay", "weight_decay"
// (must be 0), "eps", "initial_accumulator_value", "maximize". State: "sum", one number per row, so
// it needs 1 / width of the state memory of Adagrad. The formula is in kernels/rows/rows_optim.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewRowwiseAdagrad(const OptimizerSpec& spec);

}  // namespace psd::optim
