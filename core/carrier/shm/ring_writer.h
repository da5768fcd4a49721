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

// A frame that goes into a ring, perhaps in parts because it is longer than the ring.
struct OutgoingFrame {
  std::vector<Buffer> parts;
  size_t bytes = 0;    // of all parts
  size_t written = 0;  // of these, in the ring already
  size_t part = 0;     // the first part that is not wholly written
  size_t offset = 0;   // in that part
};

// Writes records and trusts nothing that the other end says. One thread at a time writes;
// HasSpace may be called by any thread.
class RingWriter {
 public:
  // `lines` and `data` belong to this end's segment, `peer` to the other end's. All outlive this.
  // Requires: `bytes` is a power of two of at least kMinRingBytes.
  RingWriter(std::byte* data, size_t bytes, TailLine* lines, const HeadLine* peer);

  // Writes as much of `frame` as has room, and publishes it. Returns true when all of the frame is
  // in the ring. Errors: INVALID_ARGUMENT if the other end's head is nonsense.
  absl::StatusOr<bool> Write(OutgoingFrame& frame);

  // Tells the other end that this end waits for space, or does not any more. After true, look once
  // more whether there is space.
  void SetStarved(bool starved);
  // Whether the other end has read since the last Write that found too little room.
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
  uint64_t tail_ = 0;                          // written; published by the end of Write
  uint64_t head_ = 0;                          // the other end's, as last seen
  std::atomic<uint64_t> full_at_{UINT64_MAX};  // that head when the ring was full
};

}  // namespace psd::carrier
