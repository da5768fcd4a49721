#pragma once

// The operators' kernels for CUDA devices.

#include "core/base/kernel_table.h"

namespace psd::cuda {

// Returns StridedCopy and the kernels of core/tensor/ops/kernels.h: those of
// kernels/cuda/operators_launch.h, and Matmul by cublasLt. They are for streams of a CudaDevice.
KernelTable OperatorKernels();

}  // namespace psd::cuda
