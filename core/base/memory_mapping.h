#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace psd {

// Owns a memory mapping and removes it. Empty by default. Thread-compatible.
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
    if (data_ != nullptr) munmap(data_, size_);
  }

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

}  // namespace psd
