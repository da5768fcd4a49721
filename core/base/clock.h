#pragma once

// An interface for time, so that tests and the simulation can control it.

#include "absl/time/time.h"
#include "core/base/mutex.h"

namespace psd {

// A monotonic clock. Its times can be compared and subtracted, but do not tell the time of day.
// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;

  // Returns the machine's steady clock, which lives as long as the process.
  static const Clock& Steady();
};

// A clock for tests that moves only by Advance.
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
  mutable Mutex mutex_;  // leaf
  absl::Time now_ PSD_GUARDED_BY(mutex_) = absl::UnixEpoch();
};

}  // namespace psd
