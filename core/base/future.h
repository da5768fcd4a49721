#pragma once

// Futures and promises: a result, which is a value or an error, that is set later.

#include <atomic>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/caught_exception.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace psd {

class Executor;    // core/base/executor.h
class WaitHelper;  // core/base/wait_helper.h

// The value type of a future that carries no value.
struct Unit {};

namespace internal {

// The part of a future's state that does not depend on the type of the value. Thread-safe.
class FutureWait {
 public:
  FutureWait(const FutureWait&) = delete;
  FutureWait& operator=(const FutureWait&) = delete;

  bool IsReady() const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return ready_;
  }
  // Sets the helper by which a thread that waits for this result can receive it sooner.
  void SetHelper(std::weak_ptr<WaitHelper> helper) PSD_EXCLUDES(mutex_);
  std::weak_ptr<WaitHelper> helper() const PSD_EXCLUDES(mutex_);
  // See Promise::IsAwaitedHere.
  bool IsAwaitedHere() const;

  // See Future::WaitFor.
  bool WaitFor(absl::Duration timeout) const PSD_EXCLUDES(mutex_);

 protected:
  FutureWait() = default;
  ~FutureWait() = default;

  // Returns when the result is there, unless it is there already.
  void WaitUntilReady() const PSD_EXCLUDES(mutex_);

  mutable Mutex mutex_;  // leaf
  mutable CondVar done_;
  bool ready_ PSD_GUARDED_BY(mutex_) = false;

 private:
  // Works with the helper, if there is one, until `until` at the latest. Returns whether the result
  // is there.
  bool Help(absl::Time until) const PSD_EXCLUDES(mutex_);

  std::weak_ptr<WaitHelper> helper_ PSD_GUARDED_BY(mutex_);
};

// Submits `task` to `executor`. Errors: those of Executor::Submit.
absl::Status SubmitTo(Executor& executor, absl::AnyInvocable<void()> task);

template <typename T>
class FutureState : public FutureWait {
 public:
  using Callback = absl::AnyInvocable<void(const absl::StatusOr<T>&)>;

  bool Set(absl::StatusOr<T> result) PSD_EXCLUDES(mutex_) {
    std::vector<Callback> callbacks;
    {
      MutexLock lock(mutex_);
      if (ready_) return false;
      result_.emplace(std::move(result));
      ready_ = true;
      callbacks.swap(callbacks_);
    }
    done_.NotifyAll();
    for (Callback& callback : callbacks) callback(Result());
    return true;
  }

  // Returns the result without taking the lock.
  // Requires: the result was set before this call, in the sense of the memory model.
  const absl::StatusOr<T>* Peek() const { return &Result(); }

  const absl::StatusOr<T>& Wait() const PSD_EXCLUDES(mutex_) {
    WaitUntilReady();
    return Result();
  }

  void OnReady(Callback callback) PSD_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (!ready_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback(Result());
  }

  // Count the promises that can set the result. If the last one is dropped and none has set it, the
  // result becomes INTERNAL.
  void AddWriter() { writers_.fetch_add(1, std::memory_order_relaxed); }
  void DropWriter() PSD_EXCLUDES(mutex_) {
    if (writers_.fetch_sub(1, std::memory_order_acq_rel) != 1 || IsReady()) return;
    Set(absl::InternalError("promise abandoned: its last copy was destroyed without a result"));
  }

 private:
  // A result never changes once it is set, so no lock is needed to read it.
  const absl::StatusOr<T>& Result() const PSD_NO_THREAD_SAFETY_ANALYSIS { return *result_; }

  std::atomic<int> writers_{0};
  std::optional<absl::StatusOr<T>> result_ PSD_GUARDED_BY(mutex_);
  std::vector<Callback> callbacks_ PSD_GUARDED_BY(mutex_);
};

template <typename T>
struct UnwrapStatusOr {
  using type = T;
};
template <typename T>
struct UnwrapStatusOr<absl::StatusOr<T>> {
  using type = T;
};
template <>
struct UnwrapStatusOr<absl::Status> {
  using type = Unit;
};

}  // namespace internal

// A handle to a result that is set later; copies share the result. Thread-safe.
//
// A handle may have an executor, on which callbacks run; handles that are given to users have one.
// Without an executor callbacks run on the thread that sets the result. As that may be a thread of
// the transport or of a timer, they must be short and never wait.
template <typename T>
class Future {
 public:
  Future() = default;  // invalid until assigned

  static Future Ready(absl::StatusOr<T> result) {
    Future future(std::make_shared<internal::FutureState<T>>());
    future.state_->Set(std::move(result));
    return future;
  }

  bool valid() const { return state_ != nullptr; }
  bool IsReady() const { return state_->IsReady(); }

  // Blocks until the result is set and returns it. On a thread of a ThreadPool it counts as a
  // ScopedBlocking, so that the pool may add a thread.
  const absl::StatusOr<T>& Wait() const& { return state_->Wait(); }
  // On a temporary handle it returns a copy, because the result may be destroyed with the handle.
  absl::StatusOr<T> Wait() const&& { return state_->Wait(); }

  // Blocks until the result is set or `timeout` has passed; returns false in the second case. The
  // work behind the future continues.
  bool WaitFor(absl::Duration timeout) const { return state_->WaitFor(timeout); }

  // Returns a handle to the same result whose callbacks run on `executor`; futures that Then makes
  // from it use the same executor. With null, or if the executor refuses a callback, the callback
  // runs on the thread that sets the result.
  Future On(std::shared_ptr<Executor> executor) const {
    return Future(state_, std::move(executor));
  }
  // The executor that callbacks run on; null if they run on the thread that sets the result.
  const std::shared_ptr<Executor>& executor() const { return executor_; }

  // Calls `callback(const absl::StatusOr<T>&)` exactly once: at once on this thread if the result
  // is there, otherwise when it is set. The callback must not throw: nobody could receive the
  // exception, so the process would end. Use Then for code that may throw.
  void OnReady(typename internal::FutureState<T>::Callback callback) const {
    auto state = state_;  // the callback may destroy this handle
    state->OnReady(executor_ == nullptr || state->IsReady() ? std::move(callback)
                                                            : Handing(std::move(callback)));
  }

  // Returns a future with the result of `function(const absl::StatusOr<T>&)`, which returns a U, an
  // absl::StatusOr<U> or an absl::Status. The function also runs if this future failed. It runs
  // where OnReady's callbacks run. If it throws, the new future fails with INTERNAL and the
  // exception's text.
  template <typename F>
  auto Then(F function) const {
    using R = std::invoke_result_t<F&, const absl::StatusOr<T>&>;
    using U = typename internal::UnwrapStatusOr<R>::type;
    auto next = std::make_shared<internal::FutureState<U>>();
    next->SetHelper(state_->helper());
    OnReady([next, function = std::move(function)](const absl::StatusOr<T>& result) mutable {
      next->Set(Catching([&]() -> absl::StatusOr<U> {
        if constexpr (std::is_same_v<R, absl::Status>) {
          PSD_RETURN_IF_ERROR(function(result));
          return U{};
        } else {
          return function(result);
        }
      }));
    });
    return Future<U>(std::move(next), executor_);
  }

 private:
  template <typename U>
  friend class Promise;
  template <typename U>
  friend class Future;
  using State = internal::FutureState<T>;
  explicit Future(std::shared_ptr<State> state, std::shared_ptr<Executor> executor = nullptr)
      : state_(std::move(state)), executor_(std::move(executor)) {}

  // Returns a callback that submits `callback` to the executor.
  typename State::Callback Handing(typename State::Callback callback) const {
    auto shared = std::make_shared<typename State::Callback>(std::move(callback));
    // The state owns its callbacks, so a callback must not own the state. The thread that sets the
    // result does, so weak.lock() succeeds.
    return [weak = std::weak_ptr<State>(state_), executor = executor_,
            shared = std::move(shared)](const absl::StatusOr<T>& result) {
      absl::Status handed = internal::SubmitTo(*executor, [state = weak.lock(), shared] {
        (*shared)(*state->Peek());
        *shared = nullptr;  // destroyed on this thread, not on the one that set the result
      });
      if (!handed.ok()) (*shared)(result);
    };
  }

  std::shared_ptr<State> state_;        // shared by the promise and all handles
  std::shared_ptr<Executor> executor_;  // shared with the creator of the handle
};

// The writing end of a future; copies write to the same future. Thread-safe. If the last copy is
// destroyed before Set was called, the future fails with INTERNAL "promise abandoned".
template <typename T>
class Promise {
 public:
  Promise() : state_(std::make_shared<internal::FutureState<T>>()) { state_->AddWriter(); }
  Promise(const Promise& other) : state_(other.state_) {
    if (state_ != nullptr) state_->AddWriter();
  }
  // The moved-from promise may only be destroyed or assigned.
  Promise(Promise&& other) noexcept = default;
  Promise& operator=(Promise other) noexcept {
    state_.swap(other.state_);
    return *this;
  }
  ~Promise() {
    if (state_ != nullptr) state_->DropWriter();
  }

  Future<T> future() const { return Future<T>(state_); }

  // A thread that waits for the result calls `helper` as long as the helper lives.
  void SetHelper(std::weak_ptr<WaitHelper> helper) const { state_->SetHelper(std::move(helper)); }
  // A thread that waits for the result helps in the same way as one that waits for `source`.
  template <typename U>
  void HelpLike(const Future<U>& source) const {
    state_->SetHelper(source.state_->helper());
  }

  // Whether this is called inside the helper's work on a thread that waits for the result. Such a
  // thread may do what is left to do for the result itself, although it is inside a callback of the
  // transport: nobody else waits for it longer than for another thread.
  bool IsAwaitedHere() const { return state_->IsAwaitedHere(); }

  // Sets the result, runs the callbacks and returns true. If the result is set already it returns
  // false and does nothing.
  bool Set(absl::StatusOr<T> result) const {
    auto state = state_;  // a callback or a waiter may destroy this promise
    return state->Set(std::move(result));
  }

 private:
  std::shared_ptr<internal::FutureState<T>> state_;  // shared with the futures
};

}  // namespace psd
