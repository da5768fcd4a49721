#pragma once

// Memory that one process makes and other processes of the host map for reading: a file without a
// name (memfd) under seals. Its length is fixed, all its pages exist and stay, and no process can
// map it for writing any more; only the mapping of its maker is writable. So whoever has mapped it
// can read it until it is unmapped, whatever other processes do.

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/memory_mapping.h"
#include "core/base/unique_fd.h"

namespace psd {

struct SealedMemory {
  UniqueFd fd;            // to be passed to other processes
  MemoryMapping mapping;  // for reading and writing
};

// Makes `bytes` zeroed bytes of sealed memory. `name` is shown in /proc/PID/maps, `purpose` in
// errors ("a link"). The whole huge pages of the memory (2 MiB) are huge pages in both processes,
// if the system can give some at once (Linux 6.1 or later). Errors: RESOURCE_EXHAUSTED naming the
// size, the system call and the limit, if the system has no memory or descriptor; UNIMPLEMENTED if
// the system has no such seals. Requires: bytes > 0.
absl::StatusOr<SealedMemory> MakeSealedMemory(const char* name, absl::string_view purpose,
                                              size_t bytes);

// Maps sealed memory of `bytes` bytes that another process made, for reading only. `fd` may be
// closed afterwards. `needed_by` ("its rings") stands in the error about a wrong length.
// Errors: INVALID_ARGUMENT saying what is wrong with the descriptor: no sealed memory, a missing
// seal, another length, not open for reading and writing, a file of huge pages (hugetlbfs), or
// pages that do not exist yet; RESOURCE_EXHAUSTED if the memory cannot be mapped.
absl::StatusOr<MemoryMapping> MapSealedMemory(const UniqueFd& fd, size_t bytes,
                                              absl::string_view needed_by);

}  // namespace psd
