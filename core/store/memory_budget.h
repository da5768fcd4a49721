#pragma once

// How much memory the values of one worker may take.

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"

namespace psd::store {

// Bytes charged to a budget; credited when the last copy goes. Null: nothing.
using MemoryCharge = std::shared_ptr<const void>;

// An allocator that charges what it gives to a budget and credits it when the block goes.
// Thread-safe.
class MemoryBudget : public Allocator {
 public:
  // `limit_bytes` 0: no limit, use is counted all the same.
  static std::shared_ptr<MemoryBudget> Create(size_t limit_bytes,
                                              std::shared_ptr<Allocator> underlying);

  // Errors: RESOURCE_EXHAUSTED naming need, budget and use; what the underlying allocator says.
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override = 0;

  // For memory that came from elsewhere. Errors: RESOURCE_EXHAUSTED, as above.
  virtual absl::StatusOr<MemoryCharge> Charge(size_t bytes) = 0;

  virtual size_t limit_bytes() const = 0;
  virtual size_t used_bytes() const = 0;
};

}  // namespace psd::store
