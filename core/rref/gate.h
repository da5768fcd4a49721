#pragma once

// Lets a layer be destroyed while other code may still call into it. Calls enter the gate and leave
// it; the owner closes the gate and waits until the last call has left.

#include "core/base/mutex.h"

namespace psd::rref {

// Shared by the layer and everything that may call it late: handles, replies, timers. Thread-safe.
class Gate {
 public:
  // Enters the gate for as long as this object lives. If open(), the objects that the gate guards
  // exist; otherwise the gate is closed, and they must not be used.
  class Entry {
   public:
    explicit Entry(Gate& gate) : gate_(gate), open_(gate.Enter()) {}
    ~Entry() {
      if (open_) gate_.Leave();
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    bool open() const { return open_; }

   private:
    Gate& gate_;
    const bool open_;
  };

  // Closes the gate and returns when nobody is inside any more. Must not be called from inside.
  void Close() PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    while (inside_ > 0) empty_.Wait(mutex_);
  }

 private:
  bool Enter() PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!closed_) ++inside_;
    return !closed_;
  }
  void Leave() PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (--inside_ == 0) empty_.NotifyAll();
  }

  Mutex mutex_;  // leaf
  CondVar empty_;
  int inside_ PSD_GUARDED_BY(mutex_) = 0;
  bool closed_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::rref
