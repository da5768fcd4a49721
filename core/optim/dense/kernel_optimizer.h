#pragma once

// The common part of the built-in optimizer types: a functional optimizer that runs one kernel of
// core/optim/dense/optim_kernels.h.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/device.h"
#include "core/base/stream.h"
#include "core/optim/dense/optim_kernels.h"
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

// A kernel with fixed options, found for each device by its name.
struct Kernel {
  // Returns whether `device`, which is not the CPU, has the kernel.
  std::function<bool(const Device& device)> is_on;
  // Steps any number of arrays that have the same type and step number. Thread-safe. Requires:
  // is_on() of the stream's device, or `stream` is null, which means the CPU.
  std::function<void(Stream* stream, const kernels::OptimBatch&)> run;
};
template <typename Options>
Kernel BindKernel(const OptimKernelName<Options>& name, const Options& options) {
  OptimKernel<Options>* const cpu = CpuOptimKernels().Find(name);
  return {[name](const Device& device) { return device.kernels().Find(name) != nullptr; },
          [name, options, cpu](Stream* stream, const kernels::OptimBatch& batch) {
            (stream == nullptr ? cpu : stream->device().kernels().Find(name))(stream, options,
                                                                              batch);
          }};
}

// The option "stochastic_rounding", which every kernel optimizer has.
OptionRule StochasticRoundingRule();

// Creates the optimizer. `spec` is complete (see CompleteSpec), and `slots` are in the order in
// which the kernel expects its state. `rows` steps rows and sparse gradients; it is null if the
// type cannot do that.
std::unique_ptr<FunctionalOptimizer> NewKernelOptimizer(
    OptimizerSpec spec, std::vector<KernelSlot> slots, Kernel kernel,
    std::unique_ptr<RowOptimizer> rows = nullptr);

}  // namespace psd::optim
