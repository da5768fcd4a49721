#pragma once

// The threads of a worker: one pool for its own work and one for its users'.

#include "absl/status/status.h"
#include "core/base/executor.h"
#include "core/base/thread_pool.h"

namespace psd {

// Runs each kind of task in a pool of its own, so that neither waits for a thread of the other. The
// threads for user work have a higher nice value: when all cores are busy, a step takes at least
// three times the share of a function that runs beside it. Thread-safe. The destructor shuts down.
class WorkThreads : public Executor {
 public:
  // Each of the two pools gets `options`. The user tasks of one flow hold at most `threads` plus
  // half of the threads that are added for waiting tasks, so that others always find some.
  explicit WorkThreads(const ThreadPoolOptions& options);

  // See ThreadPool::started.
  const absl::Status& started() const {
    return own_.started().ok() ? users_.started() : own_.started();
  }

  absl::Status Submit(Task task) override { return own_.Submit(std::move(task)); }
  absl::Status SubmitAs(const WorkLabel& label, Task task) override {
    return (label.kind == WorkLabel::Kind::kOwn ? own_ : users_).SubmitAs(label, std::move(task));
  }

  // As ThreadPool::Shutdown. While queued user tasks run to their end, own work that they wait for
  // is still taken.
  void Shutdown();

  // The sums of both pools' numbers.
  ThreadPool::Stats stats() const;

 private:
  ThreadPool own_;
  ThreadPool users_;
};

}  // namespace psd
