#include "core/device_kernels/cuda/row_kernels.h"

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device_kernels/cuda/launch.h"
#include "core/optim/rows/row_kernels.h"
#include "kernels/cuda/rows_launch.h"
#include "kernels/optim/arrays.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows_optim.h"

namespace psd::cuda {
namespace {

using kernels::DeviceRowBatch;
using kernels::DeviceRowGroups;

// Launches nothing, but CUB asks the GPU, which may fail.
absl::StatusOr<size_t> GroupRowsScratch(Stream* stream, size_t size, size_t rows) {
  size_t bytes = 0;
  PSD_RETURN_IF_ERROR(static_cast<CudaStream&>(*stream).Add(
      optim::kGroupRowsScratch.name, [&](CUstream_st* /*handle*/) {
        return kernels::cuda::GetGroupRowsScratch(size, rows, bytes);
      }));
  return bytes;
}

void GroupRows(Stream* stream, const int64_t* ids, size_t rows, const DeviceRowGroups& groups,
               std::byte* scratch) {
  AddKernel(stream, optim::kGroupRows.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchGroupRows(ids, rows, groups, scratch, handle);
  });
}

void SumRows(Stream* stream, kernels::OptimType type, const DeviceRowGroups& groups,
             const void* rows, size_t width, void* out) {
  AddKernel(stream, optim::kSumRows.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchSumRows(type, groups, rows, width, out, handle);
  });
}

// The kernel that has this name, with the signature of its table.
template <typename Options, const optim::StepRowsName<Options>& name>
void Step(Stream* stream, const Options& options, int64_t step, const DeviceRowBatch& batch) {
  AddKernel(stream, name.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchStepRows(options, step, batch, handle);
  });
}

void StepRowwise(Stream* stream, const kernels::RowAdagradOptions& options, int64_t step,
                 const DeviceRowBatch& batch) {
  AddKernel(stream, optim::kRowwiseAdagradRows.name, [&](CUstream_st* handle) {
    return kernels::cuda::LaunchStepRowwise(options, step, batch, handle);
  });
}

}  // namespace

KernelTable RowKernels() {
  KernelTable table;
  table.Add(optim::kSgdRows, Step<kernels::RowSgdOptions, optim::kSgdRows>);
  table.Add(optim::kAdagradRows, Step<kernels::RowAdagradOptions, optim::kAdagradRows>);
  table.Add(optim::kRowwiseAdagradRows, StepRowwise);
  table.Add(optim::kSparseAdamRows, Step<kernels::SparseAdamOptions, optim::kSparseAdamRows>);
  table.Add(optim::kGroupRows, GroupRows);
  table.Add(optim::kGroupRowsScratch, GroupRowsScratch);
  table.Add(optim::kSumRows, SumRows);
  return table;
}

}  // namespace psd::cuda
