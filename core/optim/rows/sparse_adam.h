#pragma once

// The optimizer type "sparse_adam", PyTorch's SparseAdam, for rows only. Options: "lr", "beta1",
// "beta2", "eps", "maximize". State: "exp_avg", "exp_avg_sq". Bias correction uses the step count
// of the whole table, not of the row. The formula is in kernels/rows/rows_optim.h.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: the INVALID_ARGUMENT of OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewSparseAdam(const OptimizerSpec& spec);

}  // namespace psd::optim
