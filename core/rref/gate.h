#pragma once

// Lets a layer go while others may still call into it: work enters and leaves, the owner closes and
// waits for the last to leave.

#include "core/base/mutex.h"

namespace psd::rref {

// Thread-safe. Shared by the layer and by what may call it late (handles, replies, timers).
class Gate {
 public:
  // While one lives and is open(), what the gate guards exists.
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

  // Nobody enters any more; returns when nobody is inside. Not from inside.
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
