#pragma once

// SparseAdam, for rows only: "lr", "beta1", "beta2", "eps", "maximize"; formula in
// kernels/rows/rows_optim.h. The step number is the table's, not the row's.

#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"

namespace psd::optim {

// Errors: INVALID_ARGUMENT as OptimizerRegistry::Create.
absl::StatusOr<std::unique_ptr<FunctionalOptimizer>> NewSparseAdam(const OptimizerSpec& spec);

}  // namespace psd::optim
