#pragma once

// Memory straight from the system, in huge pages where it has them.

#include <cstddef>

namespace psd {

inline constexpr size_t kPageBytes = size_t{4} << 10;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// `length` bytes, all zero, that start at a multiple of `alignment`; in huge pages, as far as the
// system has them, where that is kHugePageBytes. munmap(address, length) gives them back. Null when
// the system has no more.
// Requires: both are multiples of kPageBytes, `alignment` a power of two.
void* MapAligned(size_t length, size_t alignment);

}  // namespace psd
