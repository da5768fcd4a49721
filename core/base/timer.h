#pragma once

// Runs callbacks at a later time, on one thread.

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

// Thread-safe. Callbacks must be short: they run one after another on the queue's thread, without a
// lock held. The destructor drops the tasks that have not run yet and joins the thread. If the
// system refused the thread, the queue behaves as if it were stopped.
class TimerQueue {
 public:
  using Id = uint64_t;  // never zero

  // `clock` must outlive the queue. With a clock other than the steady one, call Poll() after the
  // clock has moved.
  explicit TimerQueue(const Clock& clock = Clock::Steady());
  ~TimerQueue();
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  // OK, or RESOURCE_EXHAUSTED if the system refused the queue its thread. The code that made the
  // queue must check it.
  const absl::Status& started() const { return started_; }

  Id RunAt(absl::Time when, Task task) PSD_EXCLUDES(mutex_);
  Id RunAfter(absl::Duration delay, Task task) {
    return RunAt(clock_.Now() + delay, std::move(task));
  }

  // Drops a task that has not begun and returns true. Returns false if the task has run, is running
  // or was dropped before; it does not wait for a running task.
  bool Cancel(Id id) PSD_EXCLUDES(mutex_);

  // Makes the thread read the clock again.
  void Poll() PSD_EXCLUDES(mutex_);

  // Drops the tasks that have not begun and joins the thread; a later RunAt drops its task. May be
  // called again. Requires: one thread at a time calls it, and never a callback.
  void Stop() PSD_EXCLUDES(mutex_);

 private:
  void Run() PSD_EXCLUDES(mutex_);

  const Clock& clock_;
  Mutex mutex_;  // before: Clock
  CondVar wake_;
  Id next_id_ PSD_GUARDED_BY(mutex_) = 1;
  std::map<std::pair<absl::Time, Id>, Task> tasks_ PSD_GUARDED_BY(mutex_);
  std::map<Id, absl::Time> times_ PSD_GUARDED_BY(mutex_);
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
  absl::Status started_;  // fixed by the constructor
  std::thread thread_;
};

}  // namespace psd
