#pragma once

// The writing end of a ring.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/carrier/shm/ring_format.h"

namespace psd::carrier {

// A frame that is written into a ring, in parts if it is longer than the ring.
struct OutgoingFrame {
  std::vector<Buffer> parts;
  size_t bytes = 0;    // the bytes of all parts
  size_t written = 0;  // the bytes that are in the ring already
  size_t part = 0;     // the first part that is not wholly written
  size_t offset = 0;   // the offset in that part
};

// Writes records, and checks every number that the other end has written. One thread at a time
// writes; HasSpace may be called by any thread.
class RingWriter {
 public:
  // `lines` and `data` belong to this end's segment, `peer` to the other end's. All must outlive
  // this object. Requires: `bytes` is a power of two of at least kMinRingBytes.
  RingWriter(std::byte* data, size_t bytes, TailLine* lines, const HeadLine* peer);

  // Writes as much of `frame` as there is room for, and publishes it. Returns true when all of the
  // frame is in the ring. Errors: INVALID_ARGUMENT if the other end's head is impossible.
  absl::StatusOr<bool> Write(OutgoingFrame& frame);

  // Tells the other end whether this end waits for space. After SetStarved(true), check once more
  // whether there is space.
  void SetStarved(bool starved);
  // Whether the other end has read something since the last Write that found too little room.
  bool HasSpace() const {
    return peer_->head.load(std::memory_order_seq_cst) != full_at_.load(std::memory_order_relaxed);
  }

 private:
  // Returns the free bytes of the ring; reads the other end's head if it knows fewer than `needed`.
  absl::StatusOr<size_t> Free(size_t needed);
  void WriteRecord(OutgoingFrame& frame, size_t bytes);
  void Copy(const std::byte* from, size_t bytes);

  std::byte* const data_;
  const size_t bytes_;
  TailLine* const lines_;
  const HeadLine* const peer_;
  // The end of what is written; published at the end of Write.
  uint64_t tail_ = 0;
  uint64_t head_ = 0;                          // the other end's head, as last seen
  std::atomic<uint64_t> full_at_{UINT64_MAX};  // the other end's head when the ring was full
};

}  // namespace psd::carrier
