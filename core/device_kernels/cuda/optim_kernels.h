#pragma once

// The dense optimizers' kernels for CUDA devices.

#include "core/base/kernel_table.h"

namespace psd::cuda {

// Returns all kernels of core/optim/dense/optim_kernels.h: those of kernels/cuda/optim_launch.h.
// They are for streams of a CudaDevice. A batch is one launch; the table of its arrays is copied to
// memory of the GPU outside of the device's budget, so a step needs no room there.
KernelTable OptimKernels();

}  // namespace psd::cuda
