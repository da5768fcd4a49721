#pragma once

// The layout of the memory that one end of a link shares with the other, version 1.
//
// Each end makes one segment, which only it can write, and maps the other end's segment for reading
// only. So no end can overwrite memory that the other end relies on. A segment holds the rings into
// which its maker writes, and says how far its maker has read the other end's rings.
//
//   offset            size  contents
//   0                    4  asleep: 1 while no thread of the maker looks at the other end's rings
//   4                    4  naps: how often the maker has gone to sleep
//   64 + 128 * i         8  tail: bytes that the maker has ever written into its ring i
//   64 + 128 * i + 8     4  starved: 1 while the maker waits for space in its ring i
//   128 + 128 * i        8  head: bytes that the maker has ever read from the other end's ring i
//   4096                    the rings' bytes one after another: ring 0, ring 1, …
//
// Ring 0 carries control packets, whole messages of at most kMaxInlineBytes and lent messages, in
// order; the others carry messages in pieces. The sizes of rings are powers of two. Byte n of a
// ring's stream is at offset n modulo the ring's size. The stream is a sequence of records, each at
// a multiple of 8 bytes:
//
//   offset  size  record
//        0     4  bytes: length of the payload, at least 1
//        4     1  kind: 1 = bytes of a frame
//        5     1  more: 1 if the frame goes on in the next record of this ring
//        6     2  zero
//        8        payload, then zero to seven bytes of padding
//
// A frame (core/carrier/frame.h) of at most half the ring is in one record. All integers are
// little-endian.
//
// A writer stores `tail` and then reads the other end's `asleep`. An end that goes to sleep stores
// `asleep` and then reads the other end's tails. All four accesses are sequentially consistent, so
// at least one of the two sees the other. `head` and `starved` work in the same way. An end that
// sleeps is woken by a packet on the link's socket (unix_socket.h), at most once for each value of
// `naps`.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace psd::carrier {

inline constexpr size_t kMaxRings = 17;
inline constexpr size_t kRingsOffset = 4096;
inline constexpr size_t kRecordHeaderBytes = 8;
inline constexpr size_t kRecordAlignment = 8;
inline constexpr uint8_t kFrameRecord = 1;
inline constexpr size_t kMinRingBytes = size_t{4} << 10;
inline constexpr size_t kMaxRingBytes = size_t{64} << 20;

// Fields of the segment that different ends read are on different cache lines.
struct alignas(64) DoorLine {
  std::atomic<uint32_t> asleep{1};
  std::atomic<uint32_t> naps{1};
};
struct alignas(64) TailLine {
  std::atomic<uint64_t> tail{0};
  std::atomic<uint32_t> starved{0};
};
struct alignas(64) HeadLine {
  std::atomic<uint64_t> head{0};
};
struct RingLines {
  TailLine out;  // for the maker's own ring
  HeadLine in;   // for the other end's ring with the same number
};
struct SegmentHeader {
  DoorLine door;
  RingLines rings[kMaxRings];
};
static_assert(sizeof(SegmentHeader) <= kRingsOffset);
static_assert(offsetof(SegmentHeader, rings) == 64 && sizeof(RingLines) == 128);
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// The sizes of the rings of one segment.
struct RingSizes {
  size_t control_bytes = size_t{256} << 10;
  size_t bulk_bytes = size_t{512} << 10;  // the size of each ring for pieces
  size_t bulk_rings = 2;

  size_t rings() const { return 1 + bulk_rings; }
  size_t BytesOf(size_t ring) const { return ring == 0 ? control_bytes : bulk_bytes; }
  size_t OffsetOf(size_t ring) const {
    return kRingsOffset + (ring == 0 ? 0 : control_bytes + (ring - 1) * bulk_bytes);
  }
  size_t SegmentBytes() const { return OffsetOf(rings()); }
};

// The bytes that a record with this payload takes.
inline size_t RecordBytes(size_t payload_bytes) {
  return (kRecordHeaderBytes + payload_bytes + kRecordAlignment - 1) / kRecordAlignment *
         kRecordAlignment;
}

}  // namespace psd::carrier
