#pragma once

// Sets the allocator for the results of operators on a thread.

#include <utility>

#include "core/base/buffer.h"

namespace psd {

// While a MemoryScope exists, large results of operators on this thread are allocated from
// `memory`, or from ordinary process memory if that is null. `memory` must outlive the scope.
// Scopes may be nested.
class MemoryScope {
 public:
  explicit MemoryScope(Allocator* memory) : outer_(std::exchange(current_, memory)) {}
  ~MemoryScope() { current_ = outer_; }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  // Returns the allocator of this thread's innermost scope; null means ordinary process memory.
  static Allocator* Current() { return current_; }

 private:
  static inline thread_local Allocator* current_ = nullptr;
  Allocator* const outer_;
};

}  // namespace psd
