#pragma once

// The reading end of a ring, which another process writes and may fill with invalid bytes.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/memory_budget.h"
#include "core/base/stepwise_charge.h"
#include "core/carrier/byte_reader.h"
#include "core/carrier/shm/ring_format.h"

namespace psd::carrier {

// Finds the frames in a ring. Every number that decides where to read, or how much, is copied to
// memory of this process before it is checked, so the writer cannot change it between check and
// use. Only a frame's payload is read in place, and its contents mean nothing to the carrier.
//
// One thread at a time reads; HasMore may be called by any thread.
class RingReader {
 public:
  // `lines` belongs to this end's segment, `data` and `peer` to the other end's. All must outlive
  // this object. Requires: `bytes` is a power of two of at least kMinRingBytes. Frames of more than
  // `max_frame_bytes` are refused. `account` is charged for frames that are longer than the ring.
  RingReader(const std::byte* data, size_t bytes, const TailLine* peer, HeadLine* lines,
             size_t max_frame_bytes, MemoryAccount& account);

  // Returns the bytes of the next frame, or nullopt if there is no whole one. They are valid until
  // Pop; until then Next returns the same frame. Errors: INVALID_ARGUMENT saying which number of
  // the ring is wrong; RESOURCE_EXHAUSTED from the account. After an error nothing more can be
  // read.
  absl::StatusOr<std::optional<ByteReader>> Next();

  // Gives the space of the frame in the ring back. Requires: Next has returned a frame.
  void Pop();

  // Whether the other end has written something that Next has not looked at yet.
  bool HasMore() const {
    return peer_->tail.load(std::memory_order_seq_cst) != seen_.load(std::memory_order_relaxed);
  }
  // Whether space was given back since the last call and the other end waits for space.
  bool TakeWakesWriter() {
    return std::exchange(gave_back_, false) && peer_->starved.load(std::memory_order_seq_cst) != 0;
  }

 private:
  static constexpr size_t kJoinedStepBytes = size_t{64} << 10;

  struct Record {
    size_t bytes = 0;
    bool more = false;
  };
  // Returns the header of the record at head_, or nullopt if the ring is empty.
  absl::StatusOr<std::optional<Record>> ReadHeader();
  absl::Status CheckTail(uint64_t tail) const;
  // The two parts of the ring's memory that hold `bytes` bytes from `from` on.
  struct Parts {
    absl::string_view first;
    absl::string_view second;
  };
  Parts At(uint64_t from, size_t bytes) const;
  void CopyOut(uint64_t from, size_t bytes, std::string& to) const;
  void GiveBack();
  // Copies the part of a frame that holds sizes to memory of this process.
  ByteReader Split(size_t bytes);

  const std::byte* const data_;
  const size_t bytes_;
  const TailLine* const peer_;
  HeadLine* const lines_;
  const size_t max_frame_bytes_;
  MemoryAccount& account_;

  uint64_t head_ = 0;              // the first byte that is not read yet
  uint64_t tail_ = 0;              // the other end's tail, as last seen and checked
  std::atomic<uint64_t> seen_{0};  // tail_, for HasMore
  size_t record_bytes_ = 0;        // the bytes of the record that Next returned and Pop gives back
  bool gave_back_ = false;         // whether space was given back since TakeWakesWriter
  bool has_frame_ = false;         // whether Next returned a frame that was not popped
  ByteReader frame_;
  std::string front_;   // the bytes of a frame that were copied
  std::string joined_;  // the bytes of a frame in several records that were read so far
  StepwiseCharge joined_charge_{kJoinedStepBytes};
  absl::string_view chunks_[3];  // the frame: front_ and the rest in the ring, or joined_
};

}  // namespace psd::carrier
