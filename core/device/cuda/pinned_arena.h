#pragma once

// Host memory for the copies of a CUDA device.

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/device/cuda/cuda_context.h"

namespace psd::cuda {

// Pinned memory that is reserved once, because pinning memory takes a millisecond for each few MiB
// and unpinning waits for the device. Thread-safe.
class PinnedArena : public Allocator {
 public:
  // `bytes` may be 0. Errors: RESOURCE_EXHAUSTED naming `bytes`, if the system refuses them.
  static absl::StatusOr<std::unique_ptr<PinnedArena>> Create(std::shared_ptr<CudaContext> context,
                                                             size_t bytes);

  // Blocks count with their sizes rounded up to kBlockAlignment.
  // Errors: RESOURCE_EXHAUSTED naming the need, the budget and the use, or the largest free piece.
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override;

  // Whether the bytes lie in one block that lives.
  bool Contains(const std::byte* address, size_t bytes) const;

 private:
  class State;
  class PinnedBlock;

  explicit PinnedArena(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;  // shared with the blocks
};

}  // namespace psd::cuda
