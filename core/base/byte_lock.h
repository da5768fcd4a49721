#pragma once

#include <atomic>
#include <thread>

namespace psd {

// A mutex of one byte, for objects of which there are millions and over which two threads hardly
// ever meet. Only a few instructions may run under it: who finds it taken spins.
class ByteLock {
 public:
  void Lock() {
    while (taken_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void Unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

// Holds `lock` as long as it lives.
class ByteLockHolder {
 public:
  explicit ByteLockHolder(ByteLock& lock) : lock_(lock) { lock_.Lock(); }
  ~ByteLockHolder() { lock_.Unlock(); }
  ByteLockHolder(const ByteLockHolder&) = delete;
  ByteLockHolder& operator=(const ByteLockHolder&) = delete;

 private:
  ByteLock& lock_;
};

}  // namespace psd
