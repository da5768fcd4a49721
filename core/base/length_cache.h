#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace psd {

// Keeps freed memory for reuse, by length, up to a bound on its bytes. `Memory` is the type of one
// piece, whose destructor frees it. Thread-safe.
template <typename Memory>
class LengthCache {
 public:
  explicit LengthCache(size_t bound_bytes) : bound_bytes_(bound_bytes) {}

  // Returns a piece of exactly `length` bytes, if there is one: the one that was given last, whose
  // bytes may still be in the processor's caches.
  std::optional<Memory> Take(size_t length) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto found = free_.upper_bound(length);
    if (found == free_.begin() || std::prev(found)->first != length) return std::nullopt;
    --found;
    std::optional<Memory> memory(std::move(found->second.memory));
    free_.erase(found);
    bytes_ -= length;
    return memory;
  }

  // Keeps `memory`, or frees it if there is no room.
  void Give(size_t length, Memory memory) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (length > bound_bytes_ - bytes_) return;  // `memory` is freed after the lock
    free_.emplace(length, Piece{std::move(memory), age_});
    bytes_ += length;
  }

  // Frees the pieces that have been here since before the previous call.
  void Age() PSD_EXCLUDES(mutex_) {
    std::vector<Memory> freed;
    MutexLock lock(mutex_);
    for (auto each = free_.begin(); each != free_.end();) {
      if (each->second.given == age_) {
        ++each;
        continue;
      }
      bytes_ -= each->first;
      freed.push_back(std::move(each->second.memory));
      each = free_.erase(each);
    }
    ++age_;
  }

  // Frees all pieces. Returns whether there were any.
  bool Clear() PSD_EXCLUDES(mutex_) {
    std::multimap<size_t, Piece> freed;
    MutexLock lock(mutex_);
    freed.swap(free_);
    bytes_ = 0;
    return !freed.empty();
  }

  // Frees all pieces, and every piece that is given later. To be called when nobody takes pieces
  // any more.
  void Close() PSD_EXCLUDES(mutex_) {
    std::multimap<size_t, Piece> freed;
    MutexLock lock(mutex_);
    freed.swap(free_);
    bytes_ = bound_bytes_ = 0;
  }

 private:
  struct Piece {
    Memory memory;
    uint64_t given = 0;  // the age of the cache then
  };

  Mutex mutex_;  // leaf
  size_t bound_bytes_ PSD_GUARDED_BY(mutex_);
  size_t bytes_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t age_ PSD_GUARDED_BY(mutex_) = 0;  // counts the calls of Age
  std::multimap<size_t, Piece> free_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd
