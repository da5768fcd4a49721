#pragma once

// The kernels of rows for emulated devices.

#include "core/base/kernel_table.h"

namespace psd::emulated {

// Returns all kernels of core/optim/rows/row_kernels.h. They are those of GPUs
// (kernels/cuda/rows.h), compiled for the host; CUB's sort and running sum have twins here.
KernelTable RowKernels();

}  // namespace psd::emulated
