#pragma once

// Bounds on the free small memory that is kept for reuse (small_memory.h).

#include <cstddef>

namespace psd {

// Lowers the bounds for a process that may have only `budget_bytes`: to a 512th of it for each
// thread that begins to keep pieces from now on, and to a 64th for the heap that all threads share.
void LimitKeptSmallMemory(size_t budget_bytes);

}  // namespace psd
