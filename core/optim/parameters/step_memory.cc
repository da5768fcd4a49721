#include "core/optim/parameters/step_memory.h"

#include <cstring>

#include "absl/status/statusor.h"
#include "core/base/status.h"
#include "core/base/stream.h"

namespace psd::optim {
namespace {

absl::Status SendAndWait(Device& device, absl::Span<const SentPart> parts, const Block& block) {
  for (const SentPart& part : parts)
    PSD_RETURN_IF_ERROR(device.CopyIn(block.data() + part.offset, part.from, part.bytes));
  return absl::OkStatus();
}

}  // namespace

absl::Status SendParts(Device& device, absl::Span<const SentPart> parts, const Block& block,
                       StepMemory& memory) {
  const size_t bytes = parts.empty() ? 0 : parts.back().offset + parts.back().bytes;
  const absl::StatusOr<std::shared_ptr<Block>> pinned = device.pinned_memory().Allocate(bytes);
  if (!pinned.ok() || bytes == 0) return SendAndWait(device, parts, block);
  for (const SentPart& part : parts)
    if (part.bytes > 0) std::memcpy((*pinned)->data() + part.offset, part.from, part.bytes);
  memory.push_back(*pinned);
  return CurrentStream(&device)->CopyIn(block.data(), (*pinned)->data(), bytes);
}

}  // namespace psd::optim
