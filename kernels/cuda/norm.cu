#include "kernels/cuda/norm.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/arrays.h"
#include "kernels/cuda/optim_launch.h"

namespace psd::kernels::cuda {
namespace {

template <typename P>
__global__ void __launch_bounds__(kBlockThreads)
    SquaresKernel(const OptimEntry<P, RawArray>* table, size_t count, double* sums) {
  __shared__ double shared[kBlockThreads];
  SumSquaresOfChunk(ThreadBlock(), table, count, blockIdx.x, shared, sums);
}

}  // namespace

int LaunchSumSquares(const OptimBatch& batch, const void* table, double* sums,
                     CUstream_st* stream) {
  const uint64_t chunks = ChunksOf(batch);
  if (chunks > kMostChunks) return cudaErrorInvalidConfiguration;
  if (chunks == 0) return cudaSuccess;
  WithElementType(batch.type, [&](auto element) {
    using Entry = OptimEntry<decltype(element), RawArray>;
    SquaresKernel<<<static_cast<unsigned>(chunks), kBlockThreads, 0, stream>>>(
        static_cast<const Entry*>(table), batch.count, sums);
  });
  return cudaGetLastError();
}

}  // namespace psd::kernels::cuda
