#pragma once

// A functional optimizer that is one kernel of kernels/optim: what the built-in types share.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/functional/option_table.h"
#include "core/optim/functional/row_optimizer.h"
#include "kernels/optim/arrays.h"

namespace psd::optim {

// An array of state by PyTorch's name, and what it holds before the first step.
struct KernelSlot {
  std::string name;
  double initial = 0;
};

// Thread-safe; steps any number of arrays in one call of the kernel if their type and step number
// are equal.
using Kernel = std::function<void(const kernels::OptimBatch&)>;

// The option "stochastic_rounding", which every kernel optimizer has.
OptionRule StochasticRoundingRule();

// `spec` is complete (CompleteSpec); `slots` are in the kernel's order; `rows` may be null.
std::unique_ptr<FunctionalOptimizer> NewKernelOptimizer(
    OptimizerSpec spec, std::vector<KernelSlot> slots, Kernel kernel,
    std::unique_ptr<RowOptimizer> rows = nullptr);

}  // namespace psd::optim
