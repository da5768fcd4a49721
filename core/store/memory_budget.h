#pragma once

// How much memory the values of one worker may take.

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"

namespace psd::store {

// An allocator that charges what it gives to a budget and credits it when the block goes.
// Thread-safe.
class MemoryBudget : public Allocator {
 public:
  // `limit_bytes` 0: no limit, use is counted all the same.
  static std::shared_ptr<MemoryBudget> Create(size_t limit_bytes,
                                              std::shared_ptr<Allocator> underlying);

  // Errors: RESOURCE_EXHAUSTED naming need, budget and use; what the underlying allocator says.
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override = 0;

  virtual size_t limit_bytes() const = 0;
  virtual size_t used_bytes() const = 0;
};

}  // namespace psd::store
