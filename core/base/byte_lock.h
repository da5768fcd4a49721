#pragma once

#include <atomic>
#include <thread>

namespace psd {

// A mutex of one byte, for objects that exist by the million and are rarely contended. A thread
// that finds the lock taken spins, so only a few instructions may run under the lock.
class ByteLock {
 public:
  void Lock() {
    while (taken_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void Unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

// Locks in the constructor and unlocks in the destructor.
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
