#pragma once

// A parallel loop.

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "core/base/executor.h"

namespace psd {

// The threads that may help the calling thread with a computation.
struct Helpers {
  Executor* executor = nullptr;  // outlives the computation; null if there are no helpers
  int count = 0;                 // the limit on threads of the executor that help
};

// Calls f(0) … f(count - 1), each once, in any order, and returns when all calls have returned. The
// calling thread makes calls itself; helpers take some of them as they become free. The calling
// thread waits only for calls that a helper has begun, never for a helper to begin one, so the loop
// ends even if the executor is full or the calling thread belongs to it. Requires: several threads
// may call f at the same time.
void ParallelFor(const Helpers& helpers, size_t count, absl::FunctionRef<void(size_t)> f);

}  // namespace psd
