#pragma once

// Copies the gradients of a step to a device.

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/base/device.h"

namespace psd::optim {

// Memory of the host that a device uses during a step.
using StepMemory = std::vector<std::shared_ptr<Block>>;

// Bytes of the host, and where in a block they belong.
struct SentPart {
  const std::byte* from = nullptr;
  size_t bytes = 0;
  size_t offset = 0;
};

// Copies `parts`, with ascending offsets, to their places in `block` in the memory of `device`, as
// work of the thread's CurrentStream. When this returns, their bytes may be changed or freed. The
// work is not waited for if there is pinned memory for it, which is added to `memory` and must live
// until the work is done. Errors: those of the device.
absl::Status SendParts(Device& device, absl::Span<const SentPart> parts, const Block& block,
                       StepMemory& memory);

}  // namespace psd::optim
