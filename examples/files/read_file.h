#pragma once

// Reads data sets.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::examples {

// Returns the bytes of a file. `remedy` says which file it should be, or where to get it.
// Errors: RESOURCE_EXHAUSTED for a file of more than `max_bytes` bytes; NOT_FOUND,
// PERMISSION_DENIED or another code of the system if it cannot be read. They name the path and end
// with `remedy`.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes,
                                     absl::string_view remedy);

}  // namespace psd::examples
