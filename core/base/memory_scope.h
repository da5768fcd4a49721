#pragma once

// Sets the account for the results of operators on a thread.

#include <utility>

#include "core/base/memory_budget.h"

namespace psd {

// While a MemoryScope exists, results of operators on this thread are charged to `memory`: large
// ones are allocated from it, small ones are charged in steps (small_charges.h). If `memory` is
// null, they are ordinary process memory. `memory` must outlive the scope. Scopes may be nested.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryAccount* memory) : outer_(std::exchange(current_, memory)) {}
  ~MemoryScope() { current_ = outer_; }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  // Returns the account of this thread's innermost scope; null means ordinary process memory.
  static MemoryAccount* Current() { return current_; }

 private:
  static inline thread_local MemoryAccount* current_ = nullptr;
  MemoryAccount* const outer_;
};

}  // namespace psd
