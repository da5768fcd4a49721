#pragma once

// The memory file of an emulated device, which other processes may map.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"

namespace psd::emulated {

// Makes a file of `bytes` bytes without a name. It can neither grow nor shrink, so no process that
// has mapped it can be ended by the size that another one gives it. Only pages in use take memory.
// Errors: RESOURCE_EXHAUSTED naming the device and the size, if the system refuses.
absl::StatusOr<UniqueFd> MakeArenaFile(const std::string& device, size_t bytes);

// Returns the size of a file that another process made with MakeArenaFile.
// Errors: INVALID_ARGUMENT naming `device`, which is to map it, and what is wrong with it.
absl::StatusOr<size_t> CheckArenaFile(absl::string_view device, const UniqueFd& file);

}  // namespace psd::emulated
