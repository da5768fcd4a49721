#include "core/base/thread_pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/executor.h"
#include "core/base/memory_scope.h"
#include "core/base/small_charges.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"

namespace psd {
namespace {

thread_local ThreadPool* current_pool = nullptr;

// The time that the task of this pool thread spent inside a ScopedBlocking or a ScopedHelping.
thread_local absl::Duration current_waited;

ThreadPoolOptions WithAThread(ThreadPoolOptions options) {
  options.threads = std::max(1, options.threads);
  return options;
}

}  // namespace

ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : options_(WithAThread(options)),
      niceness_(getpriority(PRIO_PROCESS, 0) + options.niceness),
      queue_(options.max_queue, options.max_of_one_flow) {
  MutexLock lock(mutex_);
  while (started_.ok() && alive_ < options_.threads) started_ = AddThread();
  stopping_ = !started_.ok();
}

ThreadPool::~ThreadPool() {
  Shutdown();
}

// A refused task is destroyed with the parameter `task`, after the lock is released, because its
// destructor may call the pool again.
absl::Status ThreadPool::SubmitAs(const WorkLabel& label, Task task) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return absl::FailedPreconditionError("the executor has been shut down");
    PSD_RETURN_IF_ERROR(queue_.Push(label.flow, std::move(task)));
  }
  wake_.NotifyOne();
  return absl::OkStatus();
}

void ThreadPool::Shutdown() {
  PSD_CHECK(current_pool != this, "a pool thread cannot join itself");
  while (true) {
    std::vector<std::thread> threads;
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      threads.swap(threads_);
    }
    // Repeats because a task that waits for a queued one may add threads while others are joined.
    if (threads.empty()) return;
    wake_.NotifyAll();
    for (std::thread& thread : threads) thread.join();
  }
}

ThreadPool::Stats ThreadPool::stats() const {
  MutexLock lock(mutex_);
  return {alive_, idle_, blocked_, queue_.size()};
}

void ThreadPool::Run() {
  // Only the calling thread gets the value. The system never refuses a higher or equal value.
  if (options_.niceness != 0) setpriority(PRIO_PROCESS, 0, niceness_);
  current_pool = this;
  MemoryScope memory(options_.memory.get());
  while (std::optional<Work> work = Take()) Perform(*std::move(work));
}

std::optional<ThreadPool::Work> ThreadPool::Take() {
  MutexLock lock(mutex_);
  ++idle_;
  while (!HasRunnable() && !(stopping_ && queue_.empty())) wake_.Wait(mutex_);
  --idle_;
  std::optional<Work> work;
  if (HasRunnable()) {
    work = queue_.Pop();
    ++running_;
  } else {
    --alive_;
  }
  // Idle threads sleep until they are notified. One must wake up if more tasks can run; all must
  // wake up and end if the pool stops and nothing is queued.
  if (idle_ > 0 && HasRunnable()) wake_.NotifyOne();
  if (stopping_ && queue_.empty()) wake_.NotifyAll();
  return work;
}

void ThreadPool::Perform(Work work) {
  const absl::Time begun = options_.clock->Now();
  current_waited = absl::ZeroDuration();
  BeginSmallCharges();
  std::exchange(work.item, nullptr)();
  EndSmallCharges();
  const absl::Duration cost = options_.clock->Now() - begun - current_waited;
  MutexLock lock(mutex_);
  --running_;
  queue_.Charge(work.flow, absl::ToInt64Nanoseconds(cost));
}

bool ThreadPool::HasRunnable() const {
  return queue_.HasNext() && running_ - blocked_ < options_.threads;
}

absl::Status ThreadPool::AddThread() {
  const std::string what =
      absl::StrCat("thread ", alive_ + 1, " of ", options_.threads, " for ", options_.purpose);
  PSD_ASSIGN_OR_RETURN(std::thread thread, StartThread(what, [this] { Run(); }));
  threads_.push_back(std::move(thread));
  ++alive_;
  return absl::OkStatus();
}

void ThreadPool::EnterBlocking() {
  {
    MutexLock lock(mutex_);
    ++blocked_;
    const int runnable = alive_ - blocked_;
    const int added = alive_ - options_.threads;
    // Added threads stay, because the next burst of waiting tasks needs them again. If the system
    // refuses one, the waiting tasks keep the threads that there are.
    if (runnable < options_.threads && added < options_.max_compensation) {
      AddThread().IgnoreError();
    }
  }
  wake_.NotifyOne();  // a blocked task is not counted, so another one may start
}

void ThreadPool::LeaveBlocking() {
  MutexLock lock(mutex_);
  --blocked_;
}

ScopedBlocking::ScopedBlocking()
    : pool_(current_pool), begun_(pool_ == nullptr ? absl::Time() : pool_->options_.clock->Now()) {
  if (pool_ != nullptr) pool_->EnterBlocking();
}

ScopedBlocking::~ScopedBlocking() {
  if (pool_ == nullptr) return;
  pool_->LeaveBlocking();
  current_waited += pool_->options_.clock->Now() - begun_;
}

ScopedHelping::ScopedHelping()
    : pool_(current_pool),
      begun_(pool_ == nullptr ? absl::Time() : pool_->options_.clock->Now()),
      waited_before_(current_waited) {}

// Waits of the work for others are part of this time, so they are not added to it.
ScopedHelping::~ScopedHelping() {
  if (pool_ != nullptr) current_waited = waited_before_ + (pool_->options_.clock->Now() - begun_);
}

}  // namespace psd
