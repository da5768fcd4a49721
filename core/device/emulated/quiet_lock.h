#pragma once

// A lock that ThreadSanitizer does not take for an order between operations.

#include "core/base/mutex.h"
#include "core/base/tsan.h"

#ifdef PSD_TSAN
extern "C" void AnnotateIgnoreSyncBegin(const char* file, int line);
extern "C" void AnnotateIgnoreSyncEnd(const char* file, int line);
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace psd::emulated {

// While it exists, ThreadSanitizer ignores what the thread reads, writes and locks.
class Quiet {
 public:
#ifdef PSD_TSAN
  Quiet() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
#else
  Quiet() {}  // NOLINT: a variable of a class without a constructor would be called unused
#endif
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

// A MutexLock for the emulated device's own state. All streams take the same locks, one after the
// other. An ordinary lock would therefore seem to put all their operations into an order, and
// ThreadSanitizer would miss the races that a missing event causes. The emulated device tells it
// about the orders that a real device has: the host's work before an operation is added, the
// operations of one stream, events, and the reuse of memory.
class PSD_THREAD_ANNOTATION(scoped_lockable) QuietLock {
 public:
  explicit QuietLock(Mutex& mutex) PSD_THREAD_ANNOTATION(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~QuietLock() PSD_THREAD_ANNOTATION(release_capability()) { mutex_.Unlock(); }
  QuietLock(const QuietLock&) = delete;
  QuietLock& operator=(const QuietLock&) = delete;

 private:
  const Quiet quiet_;  // begins before the lock is taken and ends after it is released
  Mutex& mutex_;
};

}  // namespace psd::emulated
