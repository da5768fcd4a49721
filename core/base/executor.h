#pragma once

// Where work runs: a bounded pool of threads that grows, up to a cap, by the threads that wait.

#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/fair_queue.h"
#include "core/base/mutex.h"

namespace psd {

using Task = absl::AnyInvocable<void()>;

// What kind of work a task is, and whose.
struct WorkLabel {
  enum class Kind {
    kOwn,   // what a worker does itself: steps, pulls, gradients, control
    kUser,  // what runs for others as long as they like: functions, programs, creations
  };
  Kind kind = Kind::kOwn;
  FlowId flow;
};

// Runs tasks, some time, on some thread. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;

  // Submits own work that is nobody's in particular.
  // Errors: RESOURCE_EXHAUSTED when the queue is full (the task is not run and is destroyed),
  // FAILED_PRECONDITION after Shutdown.
  virtual absl::Status Submit(Task task) = 0;
  // As Submit. An executor that does not tell kinds apart treats all tasks alike.
  virtual absl::Status SubmitAs(const WorkLabel& /*label*/, Task task) {
    return Submit(std::move(task));
  }
};

// Runs every task at once on the caller's thread. For tests and for work known to be short.
class InlineExecutor : public Executor {
 public:
  absl::Status Submit(Task task) override {
    task();
    return absl::OkStatus();
  }
};

struct ThreadPoolOptions {
  // What its threads are for, in errors: "functions".
  const char* purpose = "tasks";
  // Threads that run tasks. At most so many user tasks run at once, those that wait inside a
  // ScopedBlocking not counted.
  int threads = 4;
  // Threads beyond these, so that own work finds one whatever users do.
  int reserved = 0;
  // Tasks of each kind that may wait for a thread; see FairQueue for the share of one flow. More
  // load is refused, not hoarded.
  size_t max_queue = 10'000;
  // Threads added, at most, for tasks that wait inside a ScopedBlocking. Beyond it waiting tasks
  // keep their threads, and nested calls may have to queue.
  int max_compensation = 256;
  // Where the tasks' large results go (see MemoryScope); null: ordinary process memory.
  std::shared_ptr<Allocator> memory;      // shared with others that draw on it
  const Clock* clock = &Clock::Steady();  // outlives the pool; measures what tasks cost
};

// Own work goes first. Within a kind, the flows are served in turn by the time that their tasks
// took on a thread, waits inside a ScopedBlocking not counted. Thread-safe. The destructor shuts
// down. A pool that the system refused a thread is like one that was shut down.
class ThreadPool : public Executor {
 public:
  explicit ThreadPool(const ThreadPoolOptions& options);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // OK, or RESOURCE_EXHAUSTED: the system refused one of the threads that were asked for. To be
  // looked at by whoever made the pool.
  const absl::Status& started() const { return started_; }

  absl::Status Submit(Task task) override { return SubmitAs({}, std::move(task)); }
  absl::Status SubmitAs(const WorkLabel& label, Task task) override PSD_EXCLUDES(mutex_);

  // Runs what is queued, refuses what comes, joins the threads. From one thread at a time, never
  // from a pool thread. May be repeated.
  void Shutdown() PSD_EXCLUDES(mutex_);

  struct Stats {
    int threads = 0;  // alive, those added for blocked tasks included
    int idle = 0;
    int blocked = 0;
    size_t queued = 0;
  };
  Stats stats() const PSD_EXCLUDES(mutex_);

 private:
  friend class ScopedBlocking;
  struct Work {
    WorkLabel::Kind kind;
    FlowId flow;
    Task task;
  };
  void Run() PSD_EXCLUDES(mutex_);
  // Waits for a task; none when the pool ends.
  std::optional<Work> Take() PSD_EXCLUDES(mutex_);
  std::optional<Work> TakeNext() PSD_REQUIRES(mutex_);
  // Runs it on this thread, then books it.
  void Perform(Work work) PSD_EXCLUDES(mutex_);
  bool MayRunUser() const PSD_REQUIRES(mutex_);
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
  mutable Mutex mutex_;   // leaf: no other lock is taken under it
  CondVar wake_;
  FairQueue<Task> own_ PSD_GUARDED_BY(mutex_);
  FairQueue<Task> user_ PSD_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ PSD_GUARDED_BY(mutex_);
  int alive_ PSD_GUARDED_BY(mutex_) = 0;
  int idle_ PSD_GUARDED_BY(mutex_) = 0;
  int blocked_ PSD_GUARDED_BY(mutex_) = 0;
  int users_running_ PSD_GUARDED_BY(mutex_) = 0;  // tasks of users that have a thread
  int users_blocked_ PSD_GUARDED_BY(mutex_) = 0;  // of these
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
};

// Marks that the current pool thread waits for something that may need another pool thread, so
// that the pool adds one meanwhile. Does nothing on other threads. Future::Wait uses it.
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

}  // namespace psd
