#pragma once

// Bounds on the free small memory that is kept for reuse (small_memory.h).

#include <cstddef>

namespace psd {

// For a process that may have only `budget_bytes`: lowers the bounds to a 512th of it for each
// thread that begins to keep pieces from now on, and to a 64th for the heap behind all threads.
void LimitKeptSmallMemory(size_t budget_bytes);

}  // namespace psd
