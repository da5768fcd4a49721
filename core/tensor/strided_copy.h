#pragma once

// The kernel that makes strided elements contiguous.

#include <cstddef>
#include <cstdint>

#include "core/base/kernel_table.h"

namespace psd {

// Copies the elements of a strided array to `to`, row-major and dense; see kernels::StridedCopy.
using StridedCopyKernel = void(Stream* stream, const std::byte* from, const int64_t* extents,
                               const int64_t* strides, int rank, size_t item_bytes, std::byte* to);
inline constexpr KernelName<StridedCopyKernel> kStridedCopy{"StridedCopy", 0};

}  // namespace psd
