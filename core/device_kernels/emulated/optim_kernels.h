#pragma once

// The dense optimizers' kernels for emulated devices.

#include "core/base/kernel_table.h"

namespace psd::emulated {

// Returns all kernels of core/optim/dense/optim_kernels.h. They are those of GPUs
// (kernels/cuda/optim_step.h), compiled for the host.
KernelTable OptimKernels();

}  // namespace psd::emulated
