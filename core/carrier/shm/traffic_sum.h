#pragma once

#include <atomic>
#include <cstdint>

namespace psd::carrier {

// A sum of bytes to which one thread at a time adds, and which any thread reads. Unlike with an
// atomic addition, adding costs no more than to an ordinary number.
class TrafficSum {
 public:
  void Add(uint64_t bytes) {
    bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace psd::carrier
