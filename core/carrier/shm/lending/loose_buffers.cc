#include "core/carrier/shm/lending/loose_buffers.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/memory_place.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/lending/limits.h"

namespace psd::carrier {
namespace {

// A smaller buffer of a lent message is copied into the frame.
constexpr size_t kLeastNamedBytes = size_t{4} << 10;

bool IsLoose(const Buffer& buffer) {
  return buffer.size() >= kLeastNamedBytes && NamedSegment(buffer) == nullptr;
}

size_t RoomFor(const Buffer& buffer) {
  return (buffer.size() + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// Whether the frame has room for `message` once no buffer is loose.
bool FitsWithoutLoose(const Message& message) {
  std::vector<LentBuffer> buffers;
  buffers.reserve(message.buffers.size());
  for (const Buffer& buffer : message.buffers)
    buffers.push_back({buffer.size() >= kLeastNamedBytes, 0, buffer.size()});
  return LentFrameBytes(message.header.size(), buffers) <= kMaxLentFrameBytes;
}

}  // namespace

SharedSegment* NamedSegment(const Buffer& buffer) {
  if (buffer.size() < kLeastNamedBytes || buffer.segment_offset() % kBlockAlignment != 0)
    return nullptr;
  return buffer.place().segment();
}

size_t GatherLooseBuffers(Message& message, MemoryAccount& memory) {
  size_t room = 0, named = 0;
  for (const Buffer& buffer : message.buffers) {
    if (IsLoose(buffer)) room += RoomFor(buffer);
    if (NamedSegment(buffer) != nullptr) named += buffer.size();
  }
  if (room == 0 || room > named || !FitsWithoutLoose(message)) return 0;
  // A smaller block would not be in a segment.
  const absl::StatusOr<std::shared_ptr<Block>> block =
      memory.Allocate(std::max(room, kLeastLentBytes));
  if (!block.ok() || (*block)->place().kind() != MemoryPlace::Kind::kSegment) return 0;
  const Buffer gathered(*block);
  size_t offset = 0, copied = 0;
  for (Buffer& buffer : message.buffers) {
    if (!IsLoose(buffer)) continue;
    std::memcpy((*block)->data() + offset, buffer.data(), buffer.size());
    copied += buffer.size();
    const size_t next = offset + RoomFor(buffer);
    buffer = gathered.Slice(offset, buffer.size());
    offset = next;
  }
  return copied;
}

}  // namespace psd::carrier
