#pragma once

// The kernels of ApartDevice.

#include "core/base/kernel_table.h"

namespace psd::testing {

KernelTable ApartKernels();

}  // namespace psd::testing
