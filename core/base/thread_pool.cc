#include "core/base/thread_pool.h"

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

// The most user tasks of one flow that have a thread at a time.
size_t MostOfOneFlow(const ThreadPoolOptions& options) {
  return static_cast<size_t>(std::max(1, options.threads) + options.max_compensation / 2);
}

// The task that this pool thread runs: whether it is a user's, and the time it spent waiting.
thread_local bool current_is_users = false;
thread_local absl::Duration current_waited;  // inside a ScopedBlocking or a ScopedHelping

}  // namespace

ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : options_(options),
      wanted_threads_(std::max(1, options.threads) + options.reserved),
      own_(options.max_queue),
      user_(options.max_queue, MostOfOneFlow(options)) {
  MutexLock lock(mutex_);
  while (started_.ok() && alive_ < wanted_threads_) started_ = AddThread();
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
    PSD_RETURN_IF_ERROR(QueueOf(label.kind).Push(label.flow, std::move(task)));
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
  return {alive_, idle_, blocked_, own_.size() + user_.size()};
}

void ThreadPool::Run() {
  current_pool = this;
  MemoryScope memory(options_.memory.get());
  while (std::optional<Work> work = Take()) Perform(*std::move(work));
}

std::optional<ThreadPool::Work> ThreadPool::Take() {
  MutexLock lock(mutex_);
  ++idle_;
  while (!HasRunnable() && !(stopping_ && user_.empty())) wake_.Wait(mutex_);
  --idle_;
  std::optional<Work> work = TakeNext();
  if (!work.has_value()) --alive_;
  // Idle threads sleep until they are notified: one is needed if more tasks can run, all of them to
  // end if the pool stops and nothing is queued.
  if (idle_ > 0 && HasRunnable()) wake_.NotifyOne();
  if (stopping_ && own_.empty() && user_.empty()) wake_.NotifyAll();
  return work;
}

std::optional<ThreadPool::Work> ThreadPool::TakeNext() {
  if (!own_.empty() && !UserGoesFirst()) {
    auto taken = own_.Pop();
    return Work{WorkLabel::Kind::kOwn, taken.flow, std::move(taken.item)};
  }
  if (!MayRunUser()) return std::nullopt;
  ++users_running_;
  auto taken = user_.Pop();
  return Work{WorkLabel::Kind::kUser, taken.flow, std::move(taken.item)};
}

void ThreadPool::Perform(Work work) {
  const bool is_users = work.kind == WorkLabel::Kind::kUser;
  const absl::Time begun = options_.clock->Now();
  current_is_users = is_users;
  current_waited = absl::ZeroDuration();
  BeginSmallCharges();
  std::exchange(work.task, nullptr)();
  EndSmallCharges();
  const absl::Duration cost = options_.clock->Now() - begun - current_waited;
  MutexLock lock(mutex_);
  if (is_users) --users_running_;
  QueueOf(work.kind).Charge(work.flow, absl::ToInt64Nanoseconds(cost));
}

// A user task may start if fewer than options_.threads user tasks run (blocked ones not counted)
// and if `reserved` threads stay without a user task after that. If the system refused some of the
// threads, one user task may run nevertheless.
bool ThreadPool::MayRunUser() const {
  return user_.HasNext() && users_running_ - users_blocked_ < std::max(1, options_.threads) &&
         alive_ - users_running_ > std::min(options_.reserved, alive_ - 1);
}

// Otherwise a client whose requests keep own work queued would stop all users' work. Tasks that are
// blocked do not count, because they cannot go on without a thread either.
bool ThreadPool::UserGoesFirst() const {
  return MayRunUser() && users_running_ == users_blocked_ && alive_ - users_running_ > 1;
}

absl::Status ThreadPool::AddThread() {
  const std::string what =
      absl::StrCat("thread ", alive_ + 1, " of ", wanted_threads_, " for ", options_.purpose);
  PSD_ASSIGN_OR_RETURN(std::thread thread, StartThread(what, [this] { Run(); }));
  threads_.push_back(std::move(thread));
  ++alive_;
  return absl::OkStatus();
}

void ThreadPool::EnterBlocking() {
  {
    MutexLock lock(mutex_);
    ++blocked_;
    if (current_is_users) ++users_blocked_;
    const int runnable = alive_ - blocked_;
    const int added = alive_ - wanted_threads_;
    // Threads once added stay: the next burst of waiting tasks needs them again. When the system
    // refuses one, the waiting tasks simply keep the threads there are.
    if (runnable < wanted_threads_ && added < options_.max_compensation) {
      AddThread().IgnoreError();
    }
  }
  wake_.NotifyOne();  // a blocked user task is not counted, so another one may start
}

void ThreadPool::LeaveBlocking() {
  MutexLock lock(mutex_);
  --blocked_;
  if (current_is_users) --users_blocked_;
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

// Waits of the work of others lie within this time, so they are not added to it.
ScopedHelping::~ScopedHelping() {
  if (pool_ != nullptr) current_waited = waited_before_ + (pool_->options_.clock->Now() - begun_);
}

}  // namespace psd
