#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "core/base/mutex.h"

namespace psd {

// Keeps freed memory for reuse, by length, up to a bound on its bytes. `Memory` is the type of one
// piece, whose destructor frees it. Thread-safe.
template <typename Memory>
class LengthCache {
 public:
  explicit LengthCache(size_t bound_bytes) : bound_bytes_(bound_bytes) {}

  // Returns a piece of exactly `length` bytes, if there is one.
  std::optional<Memory> Take(size_t length) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto found = free_.find(length);
    if (found == free_.end()) return std::nullopt;
    std::optional<Memory> memory(std::move(found->second));
    free_.erase(found);
    bytes_ -= length;
    return memory;
  }

  // Keeps `memory`, or frees it if there is no room.
  void Give(size_t length, Memory memory) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (length > bound_bytes_ - bytes_) return;  // `memory` is freed after the lock
    free_.emplace(length, std::move(memory));
    bytes_ += length;
  }

  // Frees all pieces. Returns whether there were any.
  bool Clear() PSD_EXCLUDES(mutex_) {
    std::multimap<size_t, Memory> freed;
    MutexLock lock(mutex_);
    freed.swap(free_);
    bytes_ = 0;
    return !freed.empty();
  }

 private:
  const size_t bound_bytes_;
  Mutex mutex_;  // leaf
  size_t bytes_ PSD_GUARDED_BY(mutex_) = 0;
  std::multimap<size_t, Memory> free_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd
