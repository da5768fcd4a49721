#pragma once

// Time as a seam: a test or the simulation can own it.

#include "absl/time/time.h"
#include "core/base/mutex.h"

namespace psd {

// A monotonic clock. Its times compare and subtract; they are not the time of day. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;

  // The machine's steady clock. Stateless; lives for the whole process.
  static const Clock& Steady();
};

// A clock that stands still until told to move. For tests.
class FakeClock : public Clock {
 public:
  absl::Time Now() const override {
    MutexLock lock(mutex_);
    return now_;
  }
  void Advance(absl::Duration by) {
    MutexLock lock(mutex_);
    now_ += by;
  }

 private:
  mutable Mutex mutex_;
  absl::Time now_ PSD_GUARDED_BY(mutex_) = absl::UnixEpoch();
};

}  // namespace psd
