#pragma once

// The kernel of matrix products for CUDA devices.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "core/base/stream.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/kernels.h"

namespace psd::cuda {

// The ops::MatmulKernel of streams of a CudaDevice. cublasLt computes it. Errors: those of
// MatrixProducts::Add (core/device/cuda/matrix_products.h).
absl::Status Matmul(Stream* stream, DType dtype, int64_t m, int64_t n, int64_t k,
                    const ops::Matrix& a, const ops::Matrix& b, bool adds, std::byte* c);

}  // namespace psd::cuda
