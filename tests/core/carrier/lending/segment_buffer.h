#pragma once

// Buffers in segments of this process, as an allocator of shared memory makes them.

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "core/base/buffer.h"
#include "core/base/shared_segment.h"
#include "core/base/status.h"

namespace psd::carrier {

inline std::shared_ptr<SharedSegment> NewSegment(size_t bytes) {
  auto segment = SharedSegment::Create(bytes);
  PSD_CHECK(segment.ok(), "there is shared memory");
  return *std::move(segment);
}

// A block that shares the ownership of its segment.
class SegmentBlock : public Block {
 public:
  SegmentBlock(std::shared_ptr<SharedSegment> segment, size_t offset, size_t bytes)
      : Block(segment->data() + offset, bytes, segment->place(), offset),
        segment_(std::move(segment)) {}

 private:
  const std::shared_ptr<SharedSegment> segment_;
};

// Returns the bytes [offset, offset + bytes) of the segment.
inline Buffer SliceOf(const std::shared_ptr<SharedSegment>& segment, size_t offset, size_t bytes) {
  return Buffer(std::make_shared<const SegmentBlock>(segment, offset, bytes));
}

// Returns `bytes` bytes of the value `fill` in a segment of their own.
inline Buffer SharedBuffer(size_t bytes, char fill) {
  const std::shared_ptr<SharedSegment> segment = NewSegment(bytes);
  std::memset(segment->data(), fill, bytes);
  return SliceOf(segment, 0, bytes);
}

}  // namespace psd::carrier
