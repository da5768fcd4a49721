#include "core/device_kernels/cuda/optim_kernels.h"

#include "absl/status/status.h"
#include "core/base/stream.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device_kernels/cuda/launch.h"
#include "core/optim/dense/optim_kernels.h"
#include "kernels/cuda/optim_launch.h"
#include "kernels/optim/arrays.h"

namespace psd::cuda {
namespace {

// The kernel that has this name, with the signature of its table.
template <typename Options, const optim::OptimKernelName<Options>& name>
void Step(Stream* stream, const Options& options, const kernels::OptimBatch& batch) {
  if (batch.count == 0) return;
  LoseUnlessAdded(stream, static_cast<CudaStream&>(*stream).AddWithTable(
                              name.name, kernels::cuda::OptimTableBytes(batch),
                              [&](void* table) { kernels::cuda::FillOptimTable(batch, table); },
                              [&](const void* table, CUstream_st* handle) {
                                return kernels::cuda::LaunchStep(options, batch, table, handle);
                              }));
}

absl::Status SumSquares(Stream* stream, const kernels::OptimBatch& batch, double* sums) {
  if (batch.count == 0) return absl::OkStatus();
  return static_cast<CudaStream&>(*stream).AddWithTable(
      optim::kSumSquares.name, kernels::cuda::OptimTableBytes(batch),
      [&](void* table) { kernels::cuda::FillOptimTable(batch, table); },
      [&](const void* table, CUstream_st* handle) {
        return kernels::cuda::LaunchSumSquares(batch, table, sums, handle);
      });
}

}  // namespace

KernelTable OptimKernels() {
  KernelTable table;
  table.Add(optim::kSgd, Step<kernels::SgdOptions, optim::kSgd>);
  table.Add(optim::kAdam, Step<kernels::AdamOptions, optim::kAdam>);
  table.Add(optim::kAdagrad, Step<kernels::AdagradOptions, optim::kAdagrad>);
  table.Add(optim::kAdadelta, Step<kernels::AdadeltaOptions, optim::kAdadelta>);
  table.Add(optim::kAdamax, Step<kernels::AdamaxOptions, optim::kAdamax>);
  table.Add(optim::kRmsProp, Step<kernels::RmsPropOptions, optim::kRmsProp>);
  table.Add(optim::kRprop, Step<kernels::RpropOptions, optim::kRprop>);
  table.Add(optim::kSumSquares, SumSquares);
  return table;
}

}  // namespace psd::cuda
