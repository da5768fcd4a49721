#pragma once

// A loop whose calls are shared out among threads.

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "core/base/executor.h"

namespace psd {

// Threads that a computation may ask to join in.
struct Helpers {
  Executor* executor = nullptr;  // outlives the computation; null: nobody joins in
  int count = 0;                 // at most so many of its threads
};

// Calls f(0) … f(count - 1), each once, in any order, and returns when all have returned. This
// thread works through them itself while helpers join in as they come free: it never waits for one
// to begin, only for calls that one has begun. So it makes progress on a full executor, and on one
// of the executor's own threads.
// Requires: f may be called by several threads at once.
void ParallelFor(const Helpers& helpers, size_t count, absl::FunctionRef<void(size_t)> f);

}  // namespace psd
