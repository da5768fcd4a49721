#pragma once

// The common part of the built-in optimizer types: a functional optimizer that runs one kernel of
// kernels/optim.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/functional/option_table.h"
#include "core/optim/functional/row_optimizer.h"
#include "kernels/optim/arrays.h"

namespace psd::optim {

// One array of optimizer state: its name in PyTorch, and the value of its elements before the first
// step.
struct KernelSlot {
  std::string name;
  double initial = 0;
};

// Steps any number of arrays that share type and step number. Must be thread-safe.
using Kernel = std::function<void(const kernels::OptimBatch&)>;

// The option "stochastic_rounding", which every kernel optimizer has.
OptionRule StochasticRoundingRule();

// Creates the optimizer. `spec` is complete (see CompleteSpec), and `slots` are in the order in
// which the kernel expects its state. `rows` steps rows and sparse gradients; null if the type
// cannot.
std::unique_ptr<FunctionalOptimizer> NewKernelOptimizer(
    OptimizerSpec spec, std::vector<KernelSlot> slots, Kernel kernel,
    std::unique_ptr<RowOptimizer> rows = nullptr);

}  // namespace psd::optim
