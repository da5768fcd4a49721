#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace psd {

// A bound on the bytes that caches keep together. Shared by these caches. Thread-safe.
class CacheRoom {
 public:
  explicit CacheRoom(size_t bytes) : left_(bytes) {}

  // Returns false, and takes nothing, if less is left.
  bool Take(size_t bytes) {
    size_t left = left_.load(std::memory_order_relaxed);
    while (bytes <= left) {
      if (left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  // Requires: as many bytes are taken.
  void Give(size_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<size_t> left_;
};

// Keeps freed memory for reuse, by length, while there is room for it. `Memory` is the type of one
// piece, whose destructor frees it. Thread-safe.
template <typename Memory>
class LengthCache {
 public:
  explicit LengthCache(std::shared_ptr<CacheRoom> room) : room_(std::move(room)) {}
  ~LengthCache() { room_->Give(bytes_); }
  LengthCache(const LengthCache&) = delete;
  LengthCache& operator=(const LengthCache&) = delete;

  // Returns a piece of exactly `length` bytes, if there is one: the one that was given last, whose
  // bytes may still be in the processor's caches.
  std::optional<Memory> Take(size_t length) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    auto found = free_.upper_bound(length);
    if (found == free_.begin() || std::prev(found)->first != length) return std::nullopt;
    --found;
    std::optional<Memory> memory(std::move(found->second.memory));
    free_.erase(found);
    GiveRoom(length);
    return memory;
  }

  // Keeps `memory`, or frees it if there is no room.
  void Give(size_t length, Memory memory) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || !room_->Take(length)) return;  // `memory` is freed after the lock
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
      GiveRoom(each->first);
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
    GiveRoom(bytes_);
    return !freed.empty();
  }

  // Frees all pieces, and every piece that is given later. To be called when nobody takes pieces
  // any more.
  void Close() PSD_EXCLUDES(mutex_) {
    std::multimap<size_t, Piece> freed;
    MutexLock lock(mutex_);
    freed.swap(free_);
    GiveRoom(bytes_);
    closed_ = true;
  }

 private:
  struct Piece {
    Memory memory;
    uint64_t given = 0;  // the age of the cache then
  };

  void GiveRoom(size_t bytes) PSD_REQUIRES(mutex_) {
    bytes_ -= bytes;
    room_->Give(bytes);
  }

  const std::shared_ptr<CacheRoom> room_;  // may be shared with other caches
  Mutex mutex_;                            // leaf
  bool closed_ PSD_GUARDED_BY(mutex_) = false;
  size_t bytes_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t age_ PSD_GUARDED_BY(mutex_) = 0;  // counts the calls of Age
  std::multimap<size_t, Piece> free_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd
