#pragma once

// The launch that all dense optimizers share.

#include <cuda_runtime_api.h>

#include "kernels/cuda/arrays.h"
#include "kernels/cuda/optim_step.h"
#include "kernels/cuda/optim_updates.h"

namespace psd::kernels::cuda {

// The 1, blocks of a multiprocessor at least, stops ptxas from spilling registers to have more.
template <typename P, class Update>
__global__ void __launch_bounds__(kOptimThreads, 1)
    StepKernel(const Update update, const StepScalars<NumberOf<P>> scalars,
               const OptimEntry<P, RawArray>* table, size_t count) {
  const OptimEntry<P, RawArray> entry = table[EntryOfChunk(table, count, blockIdx.x)];
  StepThread<P>(update, scalars, entry, blockIdx.x - entry.first_chunk, threadIdx.x);
}

template <typename Options>
int Launch(const Options& options, const OptimBatch& batch, const void* table,
           CUstream_st* stream) {
  const uint64_t chunks = ChunksOf(batch);
  if (chunks == 0) return cudaSuccess;
  if (chunks > kMostChunks) return cudaErrorInvalidConfiguration;
  WithElementType(batch.type, [&](auto element) {
    using P = decltype(element);
    using T = NumberOf<P>;
    const auto scalars = ScalarsOf<T>(TermsOf(options), batch);
    const auto* const entries = static_cast<const OptimEntry<P, RawArray>*>(table);
    WithUpdate<T>(options, batch.step, [&](const auto& update) {
      StepKernel<P><<<static_cast<unsigned>(chunks), kOptimThreads, 0, stream>>>(
          update, scalars, entries, batch.count);
    });
  });
  return cudaGetLastError();
}

}  // namespace psd::kernels::cuda
