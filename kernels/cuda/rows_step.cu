#include "kernels/cuda/arrays.h"
#include "kernels/cuda/operators_launch-inl.cuh"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/rows_launch.h"

namespace psd::kernels::cuda {
namespace {

template <typename Options>
int LaunchStep(const Options& options, int64_t step, const DeviceRowBatch& batch,
               CUstream_st* stream) {
  const RunOnGpu run(stream);
  WithStepRows<RawArray>(options, step, batch, MakeRaw(), run);
  return run.error();
}

}  // namespace

int LaunchSumRows(OptimType type, const DeviceRowGroups& groups, const void* rows, size_t width,
                  void* out, CUstream_st* stream) {
  const RunOnGpu run(stream);
  WithSumRows<RawArray>(type, groups, rows, width, out, MakeRaw(), run);
  return run.error();
}

int LaunchStepRows(const RowSgdOptions& options, int64_t step, const DeviceRowBatch& batch,
                   CUstream_st* stream) {
  return LaunchStep(options, step, batch, stream);
}
int LaunchStepRows(const RowAdagradOptions& options, int64_t step, const DeviceRowBatch& batch,
                   CUstream_st* stream) {
  return LaunchStep(options, step, batch, stream);
}
int LaunchStepRows(const SparseAdamOptions& options, int64_t step, const DeviceRowBatch& batch,
                   CUstream_st* stream) {
  return LaunchStep(options, step, batch, stream);
}

int LaunchStepRowwise(const RowAdagradOptions& options, int64_t step, const DeviceRowBatch& batch,
                      CUstream_st* stream) {
  const RunBlocksOnGpu run(stream);
  WithStepRowwise<RawArray>(options, step, batch, MakeRaw(), run);
  return run.error();
}

}  // namespace psd::kernels::cuda
