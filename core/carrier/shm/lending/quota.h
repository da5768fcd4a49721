#pragma once

#include <atomic>
#include <cstddef>

namespace psd::carrier {

// Bounds the number of some things and the sum of their bytes. Thread-safe.
class Quota {
 public:
  Quota(size_t max_things, size_t max_bytes) : max_things_(max_things), max_bytes_(max_bytes) {}

  // Adds a thing. Returns false, and adds nothing, if there is no room.
  bool Take(size_t bytes) {
    if (bytes > max_bytes_) return false;
    const bool place = things_.fetch_add(1) < max_things_;
    const bool room = bytes_.fetch_add(bytes) <= max_bytes_ - bytes;
    if (!place || !room) Give(bytes);
    return place && room;
  }
  // Requires: Take(bytes) returned true.
  void Give(size_t bytes) {
    things_.fetch_sub(1);
    bytes_.fetch_sub(bytes);
  }

  size_t things() const { return things_.load(); }
  size_t bytes() const { return bytes_.load(); }

 private:
  const size_t max_things_;
  const size_t max_bytes_;
  std::atomic<size_t> things_{0};
  std::atomic<size_t> bytes_{0};
};

}  // namespace psd::carrier
