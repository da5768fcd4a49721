#pragma once

// Where work runs: a bounded pool of threads that grows, up to a cap, by the threads that wait.

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "core/base/mutex.h"

namespace psd {

using Task = absl::AnyInvocable<void()>;

// Runs tasks, some time, on some thread. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;

  // Errors: RESOURCE_EXHAUSTED when the queue is full (the task is not run and is destroyed),
  // FAILED_PRECONDITION after Shutdown.
  virtual absl::Status Submit(Task task) = 0;
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
  // Threads that run tasks.
  int threads = 4;
  // Tasks that may wait for a thread. More load is refused, not hoarded.
  size_t max_queue = 10'000;
  // Threads added, at most, for tasks that wait inside a ScopedBlocking. Beyond it waiting tasks
  // keep their threads, and nested calls may have to queue.
  int max_compensation = 256;
};

// Thread-safe. The destructor shuts down.
class ThreadPool : public Executor {
 public:
  explicit ThreadPool(const ThreadPoolOptions& options);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  absl::Status Submit(Task task) override PSD_EXCLUDES(mutex_);

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
  void Run() PSD_EXCLUDES(mutex_);
  // False when the system has no more threads.
  bool AddThread() PSD_REQUIRES(mutex_);
  void EnterBlocking() PSD_EXCLUDES(mutex_);
  void LeaveBlocking() PSD_EXCLUDES(mutex_);

  const ThreadPoolOptions options_;
  mutable Mutex mutex_;  // leaf: no other lock is taken under it
  CondVar wake_;
  std::deque<Task> queue_ PSD_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ PSD_GUARDED_BY(mutex_);
  int alive_ PSD_GUARDED_BY(mutex_) = 0;
  int idle_ PSD_GUARDED_BY(mutex_) = 0;
  int blocked_ PSD_GUARDED_BY(mutex_) = 0;
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
};

}  // namespace psd
