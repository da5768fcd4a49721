#pragma once

// The folder in which workers of different network namespaces of one host find each other's shared
// memory, as a setting.

#include <cstddef>
#include <string>

#include "absl/status/status.h"

namespace psd {

// The longest path. The system bounds the names of sockets, and a worker's address must fit behind
// it.
inline constexpr size_t kMaxSharedFolderBytes = 64;

// Errors: INVALID_ARGUMENT if `path` is neither empty, which means no folder, nor an absolute path
// of at most so many bytes.
absl::Status CheckSharedFolder(const std::string& path);

// Returns why workers must not look for each other in the folder now: FAILED_PRECONDITION if there
// is no such folder, if it belongs to another user than that of this process, or if others may
// write to it. Who may can lead workers to others than those that they dial.
absl::Status CheckSharedFolderIsOwn(const std::string& path);

}  // namespace psd
