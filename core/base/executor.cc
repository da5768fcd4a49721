#include "core/base/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"

namespace psd {
namespace {

thread_local ThreadPool* current_pool = nullptr;

}  // namespace

ThreadPool::ThreadPool(const ThreadPoolOptions& options) : options_(options) {
  MutexLock lock(mutex_);
  int wanted = std::max(1, options_.threads);
  while (alive_ < wanted && AddThread()) {
  }
  PSD_CHECK(alive_ > 0, "the system refuses to start a thread");
}

ThreadPool::~ThreadPool() {
  Shutdown();
}

absl::Status ThreadPool::Submit(Task task) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return absl::FailedPreconditionError("the executor has been shut down");
    if (queue_.size() >= options_.max_queue) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the executor's queue is full (", options_.max_queue,
                       " tasks waiting); retry later or raise its bound"));
    }
    queue_.push_back(std::move(task));
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
    // A task that waits for a queued one may add threads meanwhile: hence the loop.
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
  current_pool = this;
  while (true) {
    Task task;
    {
      MutexLock lock(mutex_);
      ++idle_;
      while (queue_.empty() && !stopping_) wake_.Wait(mutex_);
      --idle_;
      if (queue_.empty()) {
        --alive_;
        return;
      }
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();
  }
}

bool ThreadPool::AddThread() {
  auto thread = StartThread([this] { Run(); });
  if (!thread.ok()) return false;
  threads_.push_back(*std::move(thread));
  ++alive_;
  return true;
}

void ThreadPool::EnterBlocking() {
  MutexLock lock(mutex_);
  ++blocked_;
  int runnable = alive_ - blocked_;
  int added = alive_ - std::max(1, options_.threads);
  // Threads once added stay: the next burst of waiting tasks needs them again.
  if (runnable >= std::max(1, options_.threads) || added >= options_.max_compensation) return;
  AddThread();  // refused, the waiting tasks simply keep the threads there are
}

void ThreadPool::LeaveBlocking() {
  MutexLock lock(mutex_);
  --blocked_;
}

ScopedBlocking::ScopedBlocking() : pool_(current_pool) {
  if (pool_ != nullptr) pool_->EnterBlocking();
}

ScopedBlocking::~ScopedBlocking() {
  if (pool_ != nullptr) pool_->LeaveBlocking();
}

}  // namespace psd
