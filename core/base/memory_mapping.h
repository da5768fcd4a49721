#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace psd {

// Owns a memory mapping and removes it. Empty by default. Thread-compatible.
//
// A large mapping is removed in pieces, because other threads of the process cannot map memory
// while the system removes one: up to 0.1 s for 1 GiB at once, and some milliseconds for a piece.
class MemoryMapping {
 public:
  MemoryMapping() = default;
  MemoryMapping(void* data, size_t size) : data_(static_cast<std::byte*>(data)), size_(size) {}
  MemoryMapping(MemoryMapping&& other) noexcept { Swap(other); }
  MemoryMapping& operator=(MemoryMapping&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~MemoryMapping() {
    if (data_ == nullptr) return;
    for (size_t at = 0; at < size_; at += kPieceBytes) {
      munmap(data_ + at, std::min(kPieceBytes, size_ - at));
    }
  }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kPieceBytes = size_t{16} << 20;  // whole huge pages

  void Swap(MemoryMapping& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace psd
