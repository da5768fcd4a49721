#include "core/carrier/shm/ring_writer.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace psd::carrier {

RingWriter::RingWriter(std::byte* data, size_t bytes, TailLine* lines, const HeadLine* peer)
    : data_(data), bytes_(bytes), lines_(lines), peer_(peer) {}

absl::StatusOr<size_t> RingWriter::Free(size_t needed) {
  if (bytes_ - (tail_ - head_) >= needed) return bytes_ - (tail_ - head_);
  const uint64_t head = peer_->head.load(std::memory_order_acquire);
  if (head < head_ || head > tail_ || head % kRecordAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the peer says that it has read ", head,
                                                   " bytes of a ring, after it said ", head_,
                                                   ", and ", tail_, " bytes were written"));
  }
  head_ = head;
  return bytes_ - (tail_ - head_);
}

absl::StatusOr<bool> RingWriter::Write(OutgoingFrame& frame) {
  // This is a loop and not a recursion, because a peer that reads as fast as this end writes can
  // make a long frame go into a small ring in thousands of records.
  do {
    const size_t left = frame.bytes - frame.written;
    const bool in_one = frame.written == 0 && RecordBytes(left) <= bytes_ / 2;
    const size_t record = in_one ? left : std::min(left, bytes_ / 4);
    const absl::StatusOr<size_t> free = Free(RecordBytes(record));
    if (!free.ok()) return free.status();
    if (*free < RecordBytes(record)) {
      full_at_.store(head_, std::memory_order_relaxed);
      return false;
    }
    full_at_.store(UINT64_MAX, std::memory_order_relaxed);
    WriteRecord(frame, record);
    lines_->tail.store(tail_, std::memory_order_seq_cst);
  } while (frame.written < frame.bytes);
  return true;
}

void RingWriter::WriteRecord(OutgoingFrame& frame, size_t bytes) {
  const bool more = frame.written + bytes < frame.bytes;
  const uint64_t header = uint64_t{bytes} | uint64_t{kFrameRecord} << 32 | uint64_t{more} << 40;
  std::memcpy(data_ + tail_ % bytes_, &header, sizeof(header));
  const uint64_t end = tail_ + RecordBytes(bytes);
  tail_ += sizeof(header);
  for (size_t left = bytes; left > 0;) {
    const Buffer& part = frame.parts[frame.part];
    const size_t now = std::min(left, part.size() - frame.offset);
    Copy(part.data() + frame.offset, now);
    left -= now;
    frame.offset += now;
    if (frame.offset == part.size()) {
      ++frame.part;
      frame.offset = 0;
    }
  }
  frame.written += bytes;
  tail_ = end;
}

void RingWriter::Copy(const std::byte* from, size_t bytes) {
  const size_t at = tail_ % bytes_;
  const size_t first = std::min(bytes, bytes_ - at);
  std::memcpy(data_ + at, from, first);
  std::memcpy(data_, from + first, bytes - first);
  tail_ += bytes;
}

void RingWriter::SetStarved(bool starved) {
  lines_->starved.store(starved ? 1 : 0, std::memory_order_seq_cst);
}

}  // namespace psd::carrier
