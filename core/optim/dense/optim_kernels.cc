#include "core/optim/dense/optim_kernels.h"

namespace psd::optim {
namespace {

// Wraps a kernel of the CPU in a function with the signature of the table.
template <typename Options, void (*kernel)(const Options&, const kernels::OptimBatch&)>
void OnCpu(Stream* /*host*/, const Options& options, const kernels::OptimBatch& batch) {
  kernel(options, batch);
}

KernelTable MakeCpuOptimKernels() {
  KernelTable table;
  table.Add(kSgd, OnCpu<kernels::SgdOptions, kernels::SgdStep>);
  table.Add(kAdam, OnCpu<kernels::AdamOptions, kernels::AdamStep>);
  table.Add(kAdagrad, OnCpu<kernels::AdagradOptions, kernels::AdagradStep>);
  table.Add(kAdadelta, OnCpu<kernels::AdadeltaOptions, kernels::AdadeltaStep>);
  table.Add(kAdamax, OnCpu<kernels::AdamaxOptions, kernels::AdamaxStep>);
  table.Add(kRmsProp, OnCpu<kernels::RmsPropOptions, kernels::RmsPropStep>);
  table.Add(kRprop, OnCpu<kernels::RpropOptions, kernels::RpropStep>);
  return table;
}

}  // namespace

const KernelTable& CpuOptimKernels() {
  static const KernelTable& table = *new KernelTable(MakeCpuOptimKernels());
  return table;
}

}  // namespace psd::optim
