#pragma once

#include <cstddef>

namespace psd {

// Memory from malloc at multiples of 64 bytes.
//
// glibc's own aligned allocation asks its heap for more than it returns and gives the excess back.
// A freed piece then has no room for another one of the same size, so with many tensors of one size
// the heap grows by half. Here the padding stays with the piece.

inline constexpr size_t kMallocAlignment = 64;

// Returns null if the system has no memory. Free the memory with FreeAligned.
void* AllocateAligned(size_t bytes);

// Frees memory from AllocateAligned. `address` may be null.
void FreeAligned(void* address);

}  // namespace psd
