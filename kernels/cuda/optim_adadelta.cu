#include "kernels/cuda/optim_launch-inl.cuh"
#include "kernels/cuda/optim_launch.h"

namespace psd::kernels::cuda {

int LaunchStep(const AdadeltaOptions& options, const OptimBatch& batch, const void* table,
               CUstream_st* stream) {
  return Launch(options, batch, table, stream);
}

}  // namespace psd::kernels::cuda
