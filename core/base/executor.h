#pragma once

// Executors, which run tasks. The main one is the pool of threads in thread_pool.h.

#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/flow_id.h"

namespace psd {

class ThreadPool;

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

// Runs each task once, at some later time, on some thread. Thread-safe.
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

// While a ScopedHelping exists, the current thread works for others until the result that its task
// waits for comes. This time does not count as the task's. A ScopedHelping does nothing on a thread
// that belongs to no pool. Future::Wait uses it.
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
