#pragma once

// Adagrad over rows, with an accumulator per element or per row; formulas in
// kernels/rows/rows_optim.h.

#include <memory>

#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/functional/row_optimizer.h"

namespace psd::optim {

enum class AdagradState { kPerElement, kPerRow };

// Requires: `spec` has the options "lr", "lr_decay", "weight_decay", "initial_accumulator_value",
// "eps" and "maximize", all checked.
std::unique_ptr<RowOptimizer> NewRowAdagrad(const OptimizerSpec& spec, AdagradState state);

}  // namespace psd::optim
