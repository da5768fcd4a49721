#include "core/carrier/shm/ring_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/status.h"
#include "core/carrier/frame.h"

namespace psd::carrier {
namespace {

// Frames of at most this size are copied as a whole before they are decoded.
constexpr size_t kSmallFrameBytes = size_t{2} << 10;

template <typename... Args>
absl::Status Nonsense(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("nonsense in the peer's ring: ", args...));
}

}  // namespace

RingReader::RingReader(const std::byte* data, size_t bytes, const TailLine* peer, HeadLine* lines,
                       size_t max_frame_bytes, MemoryAccount& account)
    : data_(data),
      bytes_(bytes),
      peer_(peer),
      lines_(lines),
      max_frame_bytes_(max_frame_bytes),
      account_(account) {}

absl::Status RingReader::CheckTail(uint64_t tail) const {
  if (tail < tail_) return Nonsense("its tail went back from ", tail_, " to ", tail);
  if (tail - head_ > bytes_) {
    return Nonsense("its tail is at ", tail, ", ", tail - head_, " bytes from the head, and the ",
                    "ring has ", bytes_);
  }
  if (tail % kRecordAlignment != 0) {
    return Nonsense("its tail is at ", tail, ", which is no multiple of ", kRecordAlignment);
  }
  return absl::OkStatus();
}

RingReader::Parts RingReader::At(uint64_t from, size_t bytes) const {
  const size_t at = from % bytes_;
  const size_t first = std::min(bytes, bytes_ - at);
  const char* data = reinterpret_cast<const char*>(data_);
  return {{data + at, first}, {data, bytes - first}};
}

void RingReader::CopyOut(uint64_t from, size_t bytes, std::string& to) const {
  const Parts parts = At(from, bytes);
  to.append(parts.first.data(), parts.first.size());
  to.append(parts.second.data(), parts.second.size());
  // From here on the copy is used. The compiler must not read the ring again instead.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

absl::StatusOr<std::optional<RingReader::Record>> RingReader::ReadHeader() {
  if (head_ == tail_) {
    const uint64_t tail = peer_->tail.load(std::memory_order_acquire);
    PSD_RETURN_IF_ERROR(CheckTail(tail));
    tail_ = tail;
    seen_.store(tail, std::memory_order_relaxed);
    if (head_ == tail_) return std::optional<Record>();
  }
  // Records begin at multiples of 8, so a header never wraps.
  const auto* words = reinterpret_cast<const std::atomic<uint64_t>*>(data_ + head_ % bytes_);
  const uint64_t header = words->load(std::memory_order_relaxed);
  Record record;
  record.bytes = header & UINT32_MAX;
  const auto kind = static_cast<uint8_t>(header >> 32);
  const auto more = static_cast<uint8_t>(header >> 40);
  record.more = more == 1;
  if (kind != kFrameRecord) return Nonsense("a record of kind ", kind);
  if (more > 1 || header >> 48 != 0) return Nonsense("a record's reserved bytes are set");
  if (record.bytes == 0 || RecordBytes(record.bytes) > tail_ - head_) {
    return Nonsense("a record of ", record.bytes, " bytes where ", tail_ - head_,
                    " bytes were written");
  }
  return std::optional<Record>(record);
}

absl::StatusOr<std::optional<ByteReader>> RingReader::Next() {
  if (has_frame_) return std::optional<ByteReader>(frame_);
  while (true) {
    PSD_ASSIGN_OR_RETURN(const std::optional<Record> record, ReadHeader());
    if (!record.has_value()) return std::optional<ByteReader>();
    if (joined_.size() + record->bytes > max_frame_bytes_) {
      return Nonsense("a frame of at least ", joined_.size() + record->bytes,
                      " bytes; the longest that is accepted has ", max_frame_bytes_);
    }
    if (!record->more && joined_.empty()) {
      frame_ = Split(record->bytes);
      record_bytes_ = RecordBytes(record->bytes);
      has_frame_ = true;
      return std::optional<ByteReader>(frame_);
    }
    PSD_RETURN_IF_ERROR(joined_charge_.Add(account_, record->bytes));
    CopyOut(head_ + kRecordHeaderBytes, record->bytes, joined_);
    record_bytes_ = RecordBytes(record->bytes);
    if (!record->more) {
      chunks_[0] = joined_;
      frame_ = ByteReader(absl::MakeConstSpan(chunks_, 1));
      has_frame_ = true;
      return std::optional<ByteReader>(frame_);
    }
    GiveBack();
  }
}

void RingReader::GiveBack() {
  head_ += record_bytes_;
  lines_->head.store(head_, std::memory_order_seq_cst);
  gave_back_ = true;
}

ByteReader RingReader::Split(size_t bytes) {
  const uint64_t from = head_ + kRecordHeaderBytes;
  front_.clear();
  size_t copied = std::min(bytes, bytes <= kSmallFrameBytes ? bytes : kPreambleBytes);
  CopyOut(from, copied, front_);
  if (copied < bytes) {
    const size_t numbers = std::min(bytes, NumberBytes(front_));
    CopyOut(from + copied, numbers - copied, front_);
    copied = numbers;
  }
  const Parts rest = At(from + copied, bytes - copied);
  chunks_[0] = front_;
  chunks_[1] = rest.first;
  chunks_[2] = rest.second;
  return ByteReader(absl::MakeConstSpan(chunks_, rest.second.empty() ? 2 : 3));
}

void RingReader::Pop() {
  PSD_CHECK(has_frame_, "Pop without a frame");
  has_frame_ = false;
  joined_charge_.Subtract(joined_charge_.bytes());
  if (!joined_.empty()) std::string().swap(joined_);
  if (front_.capacity() > 2 * kSmallFrameBytes) std::string().swap(front_);
  GiveBack();
}

}  // namespace psd::carrier
