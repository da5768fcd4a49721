#pragma once

// Callbacks at a later time, on one thread of their own.

#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/mutex.h"

namespace psd {

// Thread-safe. Callbacks must be short: they run one after another on the queue's thread, without
// a lock held. The destructor drops what has not run yet and joins the thread. A queue whose thread
// the system refused is like one that was stopped.
class TimerQueue {
 public:
  using Id = uint64_t;  // never zero

  // `clock` must outlive the queue. Only the steady clock wakes the thread by itself; with another
  // clock call Poll().
  explicit TimerQueue(const Clock& clock = Clock::Steady());
  ~TimerQueue();
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  // OK, or RESOURCE_EXHAUSTED: the system refused the queue its thread. To be looked at by whoever
  // made the queue.
  const absl::Status& started() const { return started_; }

  Id RunAt(absl::Time when, Task task) PSD_EXCLUDES(mutex_);
  Id RunAfter(absl::Duration delay, Task task) {
    return RunAt(clock_.Now() + delay, std::move(task));
  }

  // True if the task will not run. False if it has run, is running or was cancelled before; does
  // not wait for a running one.
  bool Cancel(Id id) PSD_EXCLUDES(mutex_);

  // Looks at the clock again.
  void Poll() PSD_EXCLUDES(mutex_);

  // Drops what has not run yet and joins the thread; later RunAt calls drop their task. From one
  // thread at a time, never from a callback. May be repeated.
  void Stop() PSD_EXCLUDES(mutex_);

 private:
  void Run() PSD_EXCLUDES(mutex_);

  const Clock& clock_;
  Mutex mutex_;  // only the clock's own lock is taken under it
  CondVar wake_;
  Id next_id_ PSD_GUARDED_BY(mutex_) = 1;
  std::map<std::pair<absl::Time, Id>, Task> tasks_ PSD_GUARDED_BY(mutex_);
  std::map<Id, absl::Time> times_ PSD_GUARDED_BY(mutex_);
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
  absl::Status started_;  // fixed by the constructor
  std::thread thread_;
};

}  // namespace psd
