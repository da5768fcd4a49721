#pragma once

// The launches of bodies of elements (kernels/cuda/operators.h) and of blocks (softmax.h).

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/block.h"
#include "kernels/cuda/block_rows.h"

namespace psd::kernels::cuda {

inline constexpr size_t kElementThreads = 256;
// Blocks beyond these would only wait. Threads take several elements then, and blocks do the work
// of several.
inline constexpr size_t kMostBlocks = size_t{1} << 16;

template <class Body>
__global__ void __launch_bounds__(kElementThreads) ElementKernel(const Body body, size_t count) {
  const size_t step = size_t{gridDim.x} * kElementThreads;
  for (size_t i = size_t{blockIdx.x} * kElementThreads + threadIdx.x; i < count; i += step) body(i);
}

template <class Body>
__global__ void __launch_bounds__(kBlockThreads) BlockKernel(const Body body, size_t count) {
  __shared__ RowShared shared;
  for (size_t index = blockIdx.x; index < count; index += gridDim.x)
    body(ThreadBlock(), index, shared);
}

// Makes an array of a GPU: a raw pointer.
struct MakeRaw {
  template <typename T>
  T* operator()(T* address, size_t /*size*/) const {
    return address;
  }
};

struct LaunchElements {
  template <class Body>
  void operator()(const Body& body, size_t count, CUstream_st* stream) const {
    const size_t blocks = std::min((count + kElementThreads - 1) / kElementThreads, kMostBlocks);
    ElementKernel<<<static_cast<unsigned>(blocks), kElementThreads, 0, stream>>>(body, count);
  }
};

struct LaunchBlocks {
  template <class Body>
  void operator()(const Body& body, size_t count, CUstream_st* stream) const {
    const size_t blocks = std::min(count, kMostBlocks);
    BlockKernel<<<static_cast<unsigned>(blocks), kBlockThreads, 0, stream>>>(body, count);
  }
};

// Launches a body and keeps the error. One object serves one call of a With function.
template <class Launch>
class GpuRun {
 public:
  explicit GpuRun(CUstream_st* stream) : stream_(stream) {}
  template <class Body>
  void operator()(const Body& body, size_t count) const {
    Launch()(body, count, stream_);
    error_ = cudaGetLastError();
  }
  int error() const { return error_; }

 private:
  CUstream_st* stream_;
  mutable cudaError_t error_ = cudaSuccess;
};
using RunOnGpu = GpuRun<LaunchElements>;
using RunBlocksOnGpu = GpuRun<LaunchBlocks>;

}  // namespace psd::kernels::cuda
