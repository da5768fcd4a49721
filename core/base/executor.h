#pragma once

// Executors, which run tasks. The main one is a pool of threads. It adds a thread, up to a cap,
// when one of its threads waits.

#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/fair_queue.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"

namespace psd {

using Task = absl::AnyInvocable<void()>;

// The kind of a task and the flow that it is accounted to.
struct WorkLabel {
  enum class Kind {
    kOwn,   // the worker's own work: steps, pulls, gradients, control messages
    kUser,  // users' work, which may take any time: functions, programs, creations
  };
  Kind kind = Kind::kOwn;
  FlowId flow;
};

// Runs tasks: each once, at some later time, on some thread. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;

  // Submits a task of kind kOwn in the flow of the worker itself. A refused task is destroyed
  // without being run.
  // Errors: RESOURCE_EXHAUSTED if the queue is full, FAILED_PRECONDITION after Shutdown.
  virtual absl::Status Submit(Task task) = 0;
  // Submits a task with a label; otherwise as Submit. By default the label is ignored.
  virtual absl::Status SubmitAs(const WorkLabel& /*label*/, Task task) {
    return Submit(std::move(task));
  }
};

// Runs every task inside Submit, on the caller's thread. For tests and short tasks.
class InlineExecutor : public Executor {
 public:
  absl::Status Submit(Task task) override {
    task();
    return absl::OkStatus();
  }
};

struct ThreadPoolOptions {
  // The use of the threads, for error texts: "functions".
  const char* purpose = "tasks";
  // Threads that run tasks. At most so many user tasks run at once, those that wait inside a
  // ScopedBlocking not counted.
  int threads = 4;
  // Number of additional threads, which user tasks leave free for own work.
  int reserved = 0;
  // Limit on the waiting tasks of each kind; further tasks are refused. FairQueue describes the
  // smaller limit that applies to one flow.
  size_t max_queue = 10'000;
  // Limit on the threads that are added for tasks that wait inside a ScopedBlocking. Once it is
  // reached, a waiting task occupies its thread, and nested calls may have to queue. The user tasks
  // of one flow hold at most `threads` and half of the added ones, so that others always find some.
  int max_compensation = 512;
  // The account for results of the tasks (see MemoryScope); null for ordinary process memory.
  std::shared_ptr<MemoryAccount> memory;  // shared with other users of this memory
  const Clock* clock = &Clock::Steady();  // outlives the pool; measures what tasks cost
};

// Own work goes first, except that one user task may always run: a user task that waits goes first
// while no other one runs and another thread is left for own work. Within a kind, the flows are
// served in turn by the time that their tasks took on a thread, waits inside a ScopedBlocking and
// help inside a ScopedHelping not counted. Thread-safe. The destructor shuts down. A pool that the
// system refused a thread is like one that was shut down.
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
  struct Work {
    WorkLabel::Kind kind;
    FlowId flow;
    Task task;
  };
  void Run() PSD_EXCLUDES(mutex_);
  // Waits until a task can run and takes it from its queue; returns nullopt if the pool ends.
  std::optional<Work> Take() PSD_EXCLUDES(mutex_);
  std::optional<Work> TakeNext() PSD_REQUIRES(mutex_);
  // Runs the task on this thread and charges its cost to its flow.
  void Perform(Work work) PSD_EXCLUDES(mutex_);
  // Whether a user task waits for its turn and may start now.
  bool MayRunUser() const PSD_REQUIRES(mutex_);
  // Whether it may start although own work waits.
  bool UserGoesFirst() const PSD_REQUIRES(mutex_);
  bool HasRunnable() const PSD_REQUIRES(mutex_) { return !own_.empty() || MayRunUser(); }
  FairQueue<Task>& QueueOf(WorkLabel::Kind kind) PSD_REQUIRES(mutex_) {
    return kind == WorkLabel::Kind::kOwn ? own_ : user_;
  }
  // Errors: RESOURCE_EXHAUSTED when the system has no more threads.
  absl::Status AddThread() PSD_REQUIRES(mutex_);
  void EnterBlocking() PSD_EXCLUDES(mutex_);
  void LeaveBlocking() PSD_EXCLUDES(mutex_);

  const ThreadPoolOptions options_;
  const int wanted_threads_;
  absl::Status started_;  // fixed by the constructor
  mutable Mutex mutex_;   // leaf
  CondVar wake_;
  FairQueue<Task> own_ PSD_GUARDED_BY(mutex_);
  FairQueue<Task> user_ PSD_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ PSD_GUARDED_BY(mutex_);
  int alive_ PSD_GUARDED_BY(mutex_) = 0;
  int idle_ PSD_GUARDED_BY(mutex_) = 0;
  int blocked_ PSD_GUARDED_BY(mutex_) = 0;
  int users_running_ PSD_GUARDED_BY(mutex_) = 0;  // user tasks that have a thread
  int users_blocked_ PSD_GUARDED_BY(mutex_) = 0;  // those inside a ScopedBlocking
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
};

// While a ScopedBlocking exists, the pool of the current thread treats this thread as waiting for
// something that may need another thread of the pool, and may add one. A ScopedBlocking does
// nothing on a thread that belongs to no pool. Future::Wait uses it.
class ScopedBlocking {
 public:
  ScopedBlocking();
  ~ScopedBlocking();
  ScopedBlocking(const ScopedBlocking&) = delete;
  ScopedBlocking& operator=(const ScopedBlocking&) = delete;

 private:
  ThreadPool* const pool_;
  const absl::Time begun_;
};

// While a ScopedHelping exists, the current thread does work of others until the result that its
// task waits for comes. This time is not counted as the task's. A ScopedHelping does nothing on a
// thread that belongs to no pool. Future::Wait uses it.
class ScopedHelping {
 public:
  ScopedHelping();
  ~ScopedHelping();
  ScopedHelping(const ScopedHelping&) = delete;
  ScopedHelping& operator=(const ScopedHelping&) = delete;

 private:
  const ThreadPool* const pool_;
  const absl::Time begun_;
  const absl::Duration waited_before_;
};

}  // namespace psd
