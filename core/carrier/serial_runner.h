#pragma once

// Runs the callbacks of one link one after another.

#include <deque>
#include <utility>

#include "core/base/executor.h"
#include "core/base/mutex.h"

namespace psd::carrier {

// Tasks run in the order in which they were added and never overlap. A task runs on the thread that
// added it, or on one that is running an earlier task. Thread-safe. A task may add another, which
// runs after it.
class SerialRunner {
 public:
  // Adds a task and runs it, unless another thread is running tasks: then that thread runs it.
  // Requires: this object lives until the task has run (the task itself may keep it alive).
  void Run(Task task) PSD_EXCLUDES(mutex_) {
    if (Add(std::move(task))) Drain();
  }

  // Adds a task and leaves running it to the caller. When Add returns, the task has its place in
  // the order. If Add returns true, no thread is running tasks, and the caller must call Drain.
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
