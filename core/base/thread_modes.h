#pragma once

// Modes that a scope sets for the code that runs on its thread.

#include <utility>

#include "core/base/memory_scope.h"
#include "core/base/small_charges.h"

namespace psd {

class Stream;  // core/base/stream.h

struct ThreadModes {
  bool grad_enabled = true;  // see NoGradGuard
  Stream* stream = nullptr;  // see StreamScope
};
inline thread_local ThreadModes thread_modes;

// While it exists, the thread has the modes of a new thread and no MemoryScope, and has no small
// charges left to move. For a thread that works for others while it waits.
class FreshThreadModes {
 public:
  FreshThreadModes()
      : saved_(std::exchange(thread_modes, {})),
        task_bytes_(std::exchange(internal::unmoved_charges.task_bytes, 0)) {}
  ~FreshThreadModes() {
    thread_modes = saved_;
    internal::unmoved_charges.task_bytes = task_bytes_;
  }
  FreshThreadModes(const FreshThreadModes&) = delete;
  FreshThreadModes& operator=(const FreshThreadModes&) = delete;

 private:
  const ThreadModes saved_;
  const size_t task_bytes_;
  const MemoryScope no_memory_scope_{nullptr};
};

}  // namespace psd
