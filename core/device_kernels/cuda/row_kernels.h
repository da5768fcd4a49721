#pragma once

// The kernels of rows for CUDA devices.

#include "core/base/kernel_table.h"

namespace psd::cuda {

// Returns all kernels of core/optim/rows/row_kernels.h: those of kernels/cuda/rows_launch.h. They
// are for streams of a CudaDevice.
KernelTable RowKernels();

}  // namespace psd::cuda
