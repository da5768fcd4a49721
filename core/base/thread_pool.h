#pragma once

// A pool of threads that runs tasks. It adds a thread, up to a cap, when one of its threads waits.

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/fair_queue.h"
#include "core/base/flow_id.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"

namespace psd {

struct ThreadPoolOptions {
  // The purpose of the threads, for error texts: "functions".
  const char* purpose = "tasks";
  // The number of threads that run tasks. A task starts only while fewer tasks than this run, not
  // counting those that wait inside a ScopedBlocking. A task whose wait ends goes on at once, so
  // more may run for a while.
  int threads = 4;
  // Added to the nice value of the threads. With a higher value the system serves other threads
  // first when all cores are busy.
  int niceness = 0;
  // Limit on the waiting tasks; further tasks are refused. See FairQueue for the smaller limit that
  // applies to one flow.
  size_t max_queue = 10'000;
  // Limit on the tasks of one flow that have a thread, including those that wait. At least 1.
  size_t max_of_one_flow = std::numeric_limits<size_t>::max();
  // Limit on the threads that are added for tasks that wait inside a ScopedBlocking. Once it is
  // reached, a waiting task occupies its thread, and nested calls may have to queue.
  int max_compensation = 512;
  // The account for results of the tasks (see MemoryScope); null for ordinary process memory.
  std::shared_ptr<MemoryAccount> memory;  // shared with other users of this memory
  const Clock* clock = &Clock::Steady();  // outlives the pool; measures what tasks cost
};

// Flows are served in turn, weighted by the time that their tasks took on a thread. Waits inside a
// ScopedBlocking and help inside a ScopedHelping do not count, and the kind of a task makes no
// difference. Thread-safe. The destructor shuts down. If the system refused one of the threads, the
// pool behaves as if it were shut down.
class ThreadPool : public Executor {
 public:
  explicit ThreadPool(const ThreadPoolOptions& options);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // OK, or RESOURCE_EXHAUSTED if the system refused one of the threads. The code that made the pool
  // must check it.
  const absl::Status& started() const { return started_; }

  absl::Status Submit(Task task) override { return SubmitAs({}, std::move(task)); }
  absl::Status SubmitAs(const WorkLabel& label, Task task) override PSD_EXCLUDES(mutex_);

  // Refuses new tasks, runs the queued ones to their end and joins the threads. May be called
  // again. Requires: one thread at a time calls it, and never a thread of this pool.
  void Shutdown() PSD_EXCLUDES(mutex_);

  struct Stats {
    int threads = 0;  // all that are alive, also those added for blocked tasks
    int idle = 0;
    int blocked = 0;
    size_t queued = 0;
  };
  Stats stats() const PSD_EXCLUDES(mutex_);

 private:
  friend class ScopedBlocking;
  friend class ScopedHelping;
  using Work = FairQueue<Task>::Taken;
  void Run() PSD_EXCLUDES(mutex_);
  // Waits until a task can run and takes it from the queue; returns nullopt if the pool ends.
  std::optional<Work> Take() PSD_EXCLUDES(mutex_);
  // Runs the task on this thread and charges its cost to its flow.
  void Perform(Work work) PSD_EXCLUDES(mutex_);
  // Whether a task waits for its turn and may start now.
  bool HasRunnable() const PSD_REQUIRES(mutex_);
  // Errors: RESOURCE_EXHAUSTED when the system has no more threads.
  absl::Status AddThread() PSD_REQUIRES(mutex_);
  void EnterBlocking() PSD_EXCLUDES(mutex_);
  void LeaveBlocking() PSD_EXCLUDES(mutex_);

  const ThreadPoolOptions options_;
  // The nice value of the threads. Fixed here because a thread inherits that of the one that adds
  // it.
  const int niceness_;
  absl::Status started_;  // fixed by the constructor
  mutable Mutex mutex_;   // leaf
  CondVar wake_;
  FairQueue<Task> queue_ PSD_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ PSD_GUARDED_BY(mutex_);
  int alive_ PSD_GUARDED_BY(mutex_) = 0;
  int idle_ PSD_GUARDED_BY(mutex_) = 0;
  int running_ PSD_GUARDED_BY(mutex_) = 0;  // tasks that have a thread
  int blocked_ PSD_GUARDED_BY(mutex_) = 0;  // those inside a ScopedBlocking
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd
