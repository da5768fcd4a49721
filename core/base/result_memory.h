#pragma once

// The memory for large results of operators on threads without a MemoryScope: that of trainers.

#include <memory>

#include "core/base/buffer.h"

namespace psd {

// Returns the allocator of the newest ResultMemoryScope of this process. If there is none, returns
// one of ordinary process memory, which keeps freed blocks for reuse. Workers have it give back
// what is not used (Allocator::ReleaseUnused). Thread-safe.
std::shared_ptr<Allocator> ResultMemory();

// The most bytes of freed large results that are kept for later ones: about as much as one step of
// a large model uses. The results of a step have the same sizes as those of the step before.
inline constexpr size_t kKeptResultBytes = size_t{256} << 20;

// While it exists, ResultMemory() returns `allocator`, unless a newer one exists. It counts for all
// threads of the process, unlike a MemoryScope. Thread-safe.
class ResultMemoryScope {
 public:
  explicit ResultMemoryScope(std::shared_ptr<Allocator> allocator);
  ~ResultMemoryScope();
  ResultMemoryScope(const ResultMemoryScope&) = delete;
  ResultMemoryScope& operator=(const ResultMemoryScope&) = delete;
};

}  // namespace psd
