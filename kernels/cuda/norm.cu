#include "kernels/cuda/norm.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/arrays.h"
#include "kernels/cuda/optim_launch.h"

namespace psd::kernels::cuda {
namespace {

template <typename P>
__global__ void __launch_bounds__(kBlockThreads)
    SquaresKernel(const OptimEntry<P, RawArray>* table, size_t count, double* partials) {
  __shared__ double shared[kBlockThreads];
  SumSquaresOfChunk(ThreadBlock(), table, count, blockIdx.x, shared, partials);
}

__global__ void __launch_bounds__(kBlockThreads)
    PartialsKernel(const double* partials, size_t count, double* out) {
  __shared__ double shared[kBlockThreads];
  SumPartials(ThreadBlock(), partials, count, shared, out);
}

}  // namespace

size_t SumOfSquaresScratchBytes(const OptimBatch& batch) {
  return ChunksOf(batch) * sizeof(double);
}

int LaunchSumOfSquares(const OptimBatch& batch, const void* table, void* scratch, double* out,
                       CUstream_st* stream) {
  const uint64_t chunks = ChunksOf(batch);
  if (chunks > kMostChunks) return cudaErrorInvalidConfiguration;
  auto* const partials = static_cast<double*>(scratch);
  if (chunks > 0) {
    WithElementType(batch.type, [&](auto element) {
      using Entry = OptimEntry<decltype(element), RawArray>;
      SquaresKernel<<<static_cast<unsigned>(chunks), kBlockThreads, 0, stream>>>(
          static_cast<const Entry*>(table), batch.count, partials);
    });
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  PartialsKernel<<<1, kBlockThreads, 0, stream>>>(partials, chunks, out);
  return cudaGetLastError();
}

}  // namespace psd::kernels::cuda
