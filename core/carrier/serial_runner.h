#pragma once

// Runs the callbacks of one link one after another.

#include <deque>
#include <utility>

#include "core/base/executor.h"
#include "core/base/mutex.h"

namespace psd::carrier {

// Tasks run in the order given and never overlap, on a thread that is inside Run: the caller's, or
// the one that is running an earlier task. Thread-safe; may be called from inside a task (the new
// one then runs after it).
class SerialRunner {
 public:
  // Requires: something keeps this object alive until the task has run (the task itself may).
  void Run(Task task) PSD_EXCLUDES(mutex_) {
    if (Add(std::move(task))) Drain();
  }

  // Run in two parts: the task has its place in the order when Add returns. True: nobody runs tasks
  // now, and the caller must Drain.
  [[nodiscard]] bool Add(Task task) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    tasks_.push_back(std::move(task));
    return !std::exchange(running_, true);
  }
  void Drain() PSD_EXCLUDES(mutex_) {
    while (RunNext()) {
    }
  }

 private:
  bool RunNext() PSD_EXCLUDES(mutex_) {
    Task task;
    {
      MutexLock lock(mutex_);
      if (tasks_.empty()) {
        running_ = false;
        return false;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    return true;
  }

  Mutex mutex_;  // leaf
  std::deque<Task> tasks_ PSD_GUARDED_BY(mutex_);
  bool running_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::carrier
