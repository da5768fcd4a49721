#include "core/base/buffer.h"

#include <cstring>
#include <utility>

#include "core/base/status.h"

namespace psd {

Buffer Buffer::FromString(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  const auto* data = reinterpret_cast<const std::byte*>(owner->data());
  size_t size = owner->size();
  return Buffer(std::move(owner), data, size);
}

absl::StatusOr<Buffer> StableBytes(const Buffer& bytes) {
  if (bytes.place().kind() != MemoryPlace::Kind::kForeign) return bytes;
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<Block> copy,
                       NewHeapAllocator()->Allocate(bytes.size()));
  if (!bytes.empty()) std::memcpy(copy->data(), bytes.data(), bytes.size());
  return Buffer(copy);
}

}  // namespace psd
