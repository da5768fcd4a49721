#pragma once

// The sums of squares of the gradients of a batch, for clipping by norm and for detecting overflow.
//
// Each block sums one chunk of one gradient (optim_step.h); the host adds up the chunks. All sums
// are in double and in a fixed order, so the result depends only on the gradient. As
// kernels/optim/norm.h says, it is finite if and only if all elements are, except that a sum of
// doubles may overflow.

#include <cstddef>
#include <cstdint>

#include "kernels/convert.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/optim_step.h"
#include "kernels/host_device.h"

namespace psd::kernels::cuda {

static_assert(kBlockThreads == kOptimThreads);

// Sums the squares of chunk number `chunk` of the batch. `shared` has kBlockThreads numbers, which
// the block shares; `sums` has one for each chunk.
template <class Block, typename Table, typename Sums>
PSD_HOST_DEVICE void SumSquaresOfChunk(const Block& block, const Table& table, size_t count,
                                       uint64_t chunk, double* shared, const Sums& sums) {
  const auto& entry = table[EntryOfChunk(table, count, chunk)];
  const uint64_t start = (chunk - entry.first_chunk) * kChunkElements;
  block.EachThread([&](size_t thread) {
    double sum = 0;
    for (size_t i = 0; i < kThreadElements; ++i) {
      // Neighbouring threads read neighbouring elements, because gradients may be unaligned.
      const uint64_t element = start + i * kBlockThreads + thread;
      if (element < entry.size) {
        const double value = Convert<double>(entry.gradient[element]);
        sum = MulAdd(value, value, sum);
      }
    }
    shared[thread] = sum;
  });
  CombineThreads(block, shared, Plus());
  block.EachThread([&](size_t thread) {
    if (thread == 0) sums[chunk] = shared[0];
  });
}

}  // namespace psd::kernels::cuda
