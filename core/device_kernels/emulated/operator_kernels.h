#pragma once

// The operators' kernels for emulated devices.

#include "core/base/kernel_table.h"

namespace psd::emulated {

// Returns StridedCopy and the kernels of core/tensor/ops/kernels.h. They are those of GPUs
// (kernels/cuda/operators.h and softmax.h), compiled for the host; Matmul is the CPU's.
KernelTable OperatorKernels();

}  // namespace psd::emulated
