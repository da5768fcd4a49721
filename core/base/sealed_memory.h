#pragma once

// Memory that one process makes and other processes of the host map for reading: a file without a
// name (memfd) under seals. Its length is fixed, all its pages exist and stay, and no process can
// map it for writing any more; only the mapping of its maker is writable. So whoever has mapped it
// can read it until it is unmapped, whatever other processes do.

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"

namespace psd {

// A mapping, which the destructor removes. Thread-compatible.
class MemoryMapping {
 public:
  MemoryMapping() = default;
  MemoryMapping(std::byte* data, size_t size) : data_(data), size_(size) {}
  MemoryMapping(MemoryMapping&& other) noexcept { Swap(other); }
  MemoryMapping& operator=(MemoryMapping&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~MemoryMapping();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void Swap(MemoryMapping& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

struct SealedMemory {
  UniqueFd fd;            // to be passed to other processes
  MemoryMapping mapping;  // for reading and writing
};

// Makes `bytes` zeroed bytes of sealed memory. `name` is shown in /proc/PID/maps, `purpose` in
// errors ("a link"). Memory of two megabytes and more starts at a multiple of a huge page.
// Errors: RESOURCE_EXHAUSTED naming the size, the system call and the limit, if the system has no
// memory or descriptor; UNIMPLEMENTED if the system has no such seals.
// Requires: bytes > 0.
absl::StatusOr<SealedMemory> MakeSealedMemory(const char* name, absl::string_view purpose,
                                              size_t bytes);

// Maps sealed memory of `bytes` bytes that another process made, for reading only. `fd` may be
// closed afterwards. `needed_by` ("its rings") stands in the error about a wrong length.
// Errors: INVALID_ARGUMENT saying what is wrong with the descriptor: no sealed memory, a missing
// seal, another length, not open for writing, or pages that do not exist yet; RESOURCE_EXHAUSTED
// if the memory cannot be mapped.
absl::StatusOr<MemoryMapping> MapSealedMemory(const UniqueFd& fd, size_t bytes,
                                              absl::string_view needed_by);

}  // namespace psd
