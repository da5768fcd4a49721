#pragma once

#include <cstddef>

namespace psd {

// Writes what this process uses of the system's threads and memory, which limits there are, and the
// remedy, as a clause of an error. At most `size` bytes, the zero at the end included; 1,024 are
// enough. Takes no memory itself, because there may be none. Thread-safe.
void DescribeSystemLimits(char* text, size_t size);

}  // namespace psd
