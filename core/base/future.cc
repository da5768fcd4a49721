#include "core/base/future.h"

#include <utility>

#include "core/base/clock.h"
#include "core/base/executor.h"
#include "core/base/wait_helper.h"

namespace psd::internal {
namespace {

// The result for which this thread waits while it helps; the innermost one, if such waits nest.
thread_local const FutureWait* awaited_here = nullptr;

}  // namespace

bool FutureWait::IsAwaitedHere() const {
  return awaited_here == this;
}

void FutureWait::SetHelper(std::weak_ptr<WaitHelper> helper) {
  MutexLock lock(mutex_);
  helper_ = std::move(helper);
}

std::weak_ptr<WaitHelper> FutureWait::helper() const {
  MutexLock lock(mutex_);
  return helper_;
}

void FutureWait::WaitUntilReady() const {
  if (IsReady() || Help(absl::InfiniteFuture())) return;
  ScopedBlocking blocking;
  MutexLock lock(mutex_);
  while (!ready_) done_.Wait(mutex_);
}

bool FutureWait::WaitFor(absl::Duration timeout) const {
  if (IsReady()) return true;
  const absl::Time until = Clock::Steady().Now() + timeout;
  if (timeout > absl::ZeroDuration() && Help(until)) return true;
  ScopedBlocking blocking;
  MutexLock lock(mutex_);
  while (!ready_) {
    absl::Duration left = until - Clock::Steady().Now();
    if (left <= absl::ZeroDuration()) return false;
    done_.WaitFor(mutex_, left);
  }
  return true;
}

bool FutureWait::Help(absl::Time until) const {
  const std::shared_ptr<WaitHelper> helper = this->helper().lock();
  if (helper == nullptr) return false;
  const ScopedHelping helping;
  const FutureWait* const outer = std::exchange(awaited_here, this);
  helper->HelpUntil([this, until] { return IsReady() || Clock::Steady().Now() >= until; });
  awaited_here = outer;
  return IsReady();
}

absl::Status SubmitTo(Executor& executor, absl::AnyInvocable<void()> task) {
  return executor.Submit(std::move(task));
}

}  // namespace psd::internal
