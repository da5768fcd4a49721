#pragma once

// What the kernels of CUDA devices share.

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/base/stream.h"
#include "core/device/cuda/cuda_context.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_stream.h"

namespace psd::cuda {

// The kernels of a table cannot return an error, so a device that refuses one is lost, which the
// stream's next event reports.
inline void LoseUnlessAdded(Stream* stream, const absl::Status& added) {
  if (added.ok()) return;
  static_cast<void>(static_cast<CudaDevice&>(stream->device()).context().Lose(added.message()));
}

// Adds to the stream what launch(handle) launches. It returns 0 or a cudaError_t.
inline void AddKernel(Stream* stream, const char* kernel,
                      absl::FunctionRef<int(CUstream_st*)> launch) {
  LoseUnlessAdded(stream, static_cast<CudaStream&>(*stream).Add(kernel, launch));
}

}  // namespace psd::cuda
