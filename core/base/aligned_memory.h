#pragma once

#include <cstddef>

namespace psd {

// Memory of malloc at multiples of 64 bytes.
//
// glibc's own aligned allocation asks its heap for more than it returns and gives the rest back, so
// that a freed piece never has room for another one of the same size: under many tensors of one
// size a heap grows by half. Here the padding stays with the piece.

inline constexpr size_t kMallocAlignment = 64;

// Returns null if the system has no memory. Give the memory back with FreeAligned.
void* AllocateAligned(size_t bytes);

// Gives memory of AllocateAligned back. `address` may be null.
void FreeAligned(void* address);

}  // namespace psd
