#pragma once

// Which memory the work of a thread draws on.

#include <utility>

#include "core/base/buffer.h"

namespace psd {

// While it lives, large results of operators on this thread come from `memory` (null: ordinary
// process memory). `memory` must outlive the scope. Scopes nest.
class MemoryScope {
 public:
  explicit MemoryScope(Allocator* memory) : outer_(std::exchange(current_, memory)) {}
  ~MemoryScope() { current_ = outer_; }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

  // Null: ordinary process memory.
  static Allocator* Current() { return current_; }

 private:
  static inline thread_local Allocator* current_ = nullptr;
  Allocator* const outer_;
};

}  // namespace psd
