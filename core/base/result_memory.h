#pragma once

// The memory for large results of operators on threads without a MemoryScope: that of trainers.

#include <memory>

#include "core/base/buffer.h"

namespace psd {

// Returns the allocator of the newest ResultMemoryScope of this process. If there is none, returns
// one of ordinary process memory, which keeps freed blocks for reuse. Thread-safe.
std::shared_ptr<Allocator> ResultMemory();

// Large results that freed memory is kept for: about as much as one step of a large model uses.
inline constexpr size_t kKeptResultBytes = size_t{256} << 20;

// While it exists, ResultMemory() returns `allocator`, unless a newer one exists. It counts for all
// threads of the process, unlike a MemoryScope. Thread-safe.
class ResultMemoryScope {
 public:
  explicit ResultMemoryScope(std::shared_ptr<Allocator> allocator);
  ~ResultMemoryScope();
  ResultMemoryScope(const ResultMemoryScope&) = delete;
  ResultMemoryScope& operator=(const ResultMemoryScope&) = delete;

 private:
  const std::shared_ptr<Allocator> allocator_;  // shared with the code that allocates
};

}  // namespace psd
