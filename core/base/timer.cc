#include "core/base/timer.h"

#include <utility>

#include "core/base/start_thread.h"

namespace psd {

TimerQueue::TimerQueue(const Clock& clock) : clock_(clock) {
  auto thread = StartThread("a thread for timers", [this] { Run(); });
  started_ = thread.status();
  if (thread.ok()) {
    thread_ = *std::move(thread);
  } else {
    Stop();
  }
}

TimerQueue::~TimerQueue() {
  Stop();
}

TimerQueue::Id TimerQueue::RunAt(absl::Time when, Task task) {
  MutexLock lock(mutex_);
  Id id = next_id_++;
  if (stopping_) return id;
  bool first = tasks_.empty() || when < tasks_.begin()->first.first;
  tasks_.emplace(std::make_pair(when, id), std::move(task));
  times_.emplace(id, when);
  if (first) wake_.NotifyAll();
  return id;
}

bool TimerQueue::Cancel(Id id) {
  Task dropped;  // destroyed after the lock is released, since its destructor may do anything
  MutexLock lock(mutex_);
  auto time = times_.find(id);
  if (time == times_.end()) return false;
  auto task = tasks_.find({time->second, id});
  dropped = std::move(task->second);
  tasks_.erase(task);
  times_.erase(time);
  return true;
}

void TimerQueue::Poll() {
  // The lock excludes that the thread has read the clock but has not begun to wait.
  MutexLock lock(mutex_);
  wake_.NotifyAll();
}

void TimerQueue::Stop() {
  std::map<std::pair<absl::Time, Id>, Task> dropped;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
    times_.clear();
  }
  wake_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void TimerQueue::Run() {
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      while (true) {
        if (stopping_) return;
        if (tasks_.empty()) {
          wake_.Wait(mutex_);
          continue;
        }
        absl::Duration left = tasks_.begin()->first.first - clock_.Now();
        if (left <= absl::ZeroDuration()) break;
        wake_.WaitFor(mutex_, left);
      }
      auto first = tasks_.begin();
      task = std::move(first->second);
      times_.erase(first->first.second);
      tasks_.erase(first);
    }
    task();
  }
}

}  // namespace psd
