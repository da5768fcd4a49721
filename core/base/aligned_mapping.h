#pragma once

// Memory mapped directly from the system, in huge pages where the system offers them.

#include <cstddef>

namespace psd {

inline constexpr size_t kPageBytes = size_t{4} << 10;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Maps `length` zeroed bytes whose address is a multiple of `alignment`, and returns the address;
// null if the system has no more memory. With an alignment of kHugePageBytes or more the system is
// asked for huge pages. munmap(address, length) frees the mapping.
// Requires: `length` and `alignment` are multiples of kPageBytes, `alignment` is a power of two.
void* MapAligned(size_t length, size_t alignment);

// Returns the length of a mapping for a block of `bytes` bytes: whole pages, and for large blocks
// multiples of a unit, so that the mapping can be reused for blocks of a similar size. The part of
// a huge page behind a block becomes resident with the block and is charged to no account, so the
// unit is at most an eighth of the block. Requires: `bytes` is at most SIZE_MAX / 2.
size_t MappingLength(size_t bytes);

}  // namespace psd
