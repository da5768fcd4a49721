#pragma once

// How the threads of one block run a kernel that has phases with barriers between them.
//
// A kernel with phases is a template over its block. block.EachThread(phase) calls phase(thread)
// for each thread, and then all threads wait for each other. What a later phase needs of an earlier
// one lies in memory that the block shares.

#include <cstddef>

#include "kernels/host_device.h"

namespace psd::kernels::cuda {

// The threads of a block in kernels with phases.
inline constexpr size_t kBlockThreads = 256;

// The block of an emulated device: the threads run one after the other. Odd blocks run them
// backwards, so that a missing barrier changes the result.
class SerialBlock {
 public:
  explicit SerialBlock(size_t block) : backwards_(block % 2 != 0) {}
  template <typename Phase>
  void EachThread(const Phase& phase) const {
    for (size_t i = 0; i < kBlockThreads; ++i) phase(backwards_ ? kBlockThreads - 1 - i : i);
  }

 private:
  bool backwards_;
};

#ifdef __CUDACC__
// The block of a GPU. Called by all of its threads.
class ThreadBlock {
 public:
  template <typename Phase>
  PSD_HOST_DEVICE void EachThread(const Phase& phase) const {
#ifdef __CUDA_ARCH__
    phase(threadIdx.x);
    __syncthreads();
#endif
  }
};
#endif

struct Plus {
  template <typename T>
  PSD_HOST_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};

// Combines the values of the threads in a fixed order, a tree, for each group of `lanes`
// neighbouring threads, and leaves the result in the value of the group's first thread.
// combine(a, b) returns the combination of two values. Requires: `lanes` is a power of two of at
// most kBlockThreads.
template <class Block, typename T, typename Combine>
PSD_HOST_DEVICE void CombineThreads(const Block& block, T* values, const Combine& combine,
                                    size_t lanes = kBlockThreads) {
  for (size_t half = lanes / 2; half > 0; half /= 2) {
    block.EachThread([&](size_t thread) {
      if (thread % lanes < half) values[thread] = combine(values[thread], values[thread + half]);
    });
  }
}

}  // namespace psd::kernels::cuda
