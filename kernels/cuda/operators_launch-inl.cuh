#pragma once

// The launch that all operators of kernels/cuda/operators.h share.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

namespace psd::kernels::cuda {

inline constexpr size_t kElementThreads = 256;
// Blocks beyond these would only wait; each thread takes several elements then.
inline constexpr size_t kElementBlocks = size_t{1} << 16;

template <class Body>
__global__ void __launch_bounds__(kElementThreads) ElementKernel(const Body body, size_t count) {
  const size_t step = size_t{gridDim.x} * kElementThreads;
  for (size_t i = size_t{blockIdx.x} * kElementThreads + threadIdx.x; i < count; i += step) body(i);
}

// Makes an array of a GPU: a raw pointer.
struct MakeRaw {
  template <typename T>
  T* operator()(T* address, size_t /*size*/) const {
    return address;
  }
};

// Launches a body. One object serves one call of a With function.
class RunOnGpu {
 public:
  explicit RunOnGpu(CUstream_st* stream) : stream_(stream) {}
  template <class Body>
  void operator()(const Body& body, size_t count) const {
    const size_t blocks = std::min((count + kElementThreads - 1) / kElementThreads, kElementBlocks);
    ElementKernel<<<static_cast<unsigned>(blocks), kElementThreads, 0, stream_>>>(body, count);
    error_ = cudaGetLastError();
  }
  int error() const { return error_; }

 private:
  CUstream_st* stream_;
  mutable cudaError_t error_ = cudaSuccess;
};

}  // namespace psd::kernels::cuda
