#pragma once

// SGD over rows. With momentum, every row that ever had a gradient moves in every step, as in
// PyTorch. The formula is in kernels/rows/rows_optim.h.

#include <memory>

#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/functional/row_optimizer.h"

namespace psd::optim {

// Requires: the options of "sgd", complete and checked.
std::unique_ptr<RowOptimizer> NewRowSgd(const OptimizerSpec& spec);

}  // namespace psd::optim
