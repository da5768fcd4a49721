#pragma once

// A wrapper of std::mutex with clang's thread-safety annotations.
//
// absl::Mutex is not used because the packaged Abseil is not instrumented for ThreadSanitizer,
// which would report every access under it as a race.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

#if defined(__clang__)
#define PSD_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define PSD_THREAD_ANNOTATION(x)
#endif
#define PSD_GUARDED_BY(x) PSD_THREAD_ANNOTATION(guarded_by(x))
#define PSD_REQUIRES(...) PSD_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define PSD_EXCLUDES(...) PSD_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define PSD_NO_THREAD_SAFETY_ANALYSIS PSD_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace psd {

class PSD_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void Lock() PSD_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void Unlock() PSD_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class PSD_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PSD_THREAD_ANNOTATION(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() PSD_THREAD_ANNOTATION(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable for Mutex. The caller of a Wait holds the mutex.
class CondVar {
 public:
  void Wait(Mutex& mutex) PSD_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Returns false if `timeout` passed without a notification.
  bool WaitFor(Mutex& mutex, absl::Duration timeout) PSD_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // Waits on the steady clock, which is not affected by jumps of the wall clock.
    auto until = std::chrono::steady_clock::now() +
                 absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
    bool notified = condition_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace psd
