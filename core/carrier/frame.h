#pragma once

// The carriers' wire format, version 2. A network message is a sequence of whole frames. Every
// frame starts with a preamble of 24 bytes; all integers are little-endian.
//
//   offset  size  preamble
//        0     3  "psd"
//        3     1  version, 2
//        4     1  kind
//        5     3  zero
//        8     4  header_bytes: length of the message's header (message, announce; else zero)
//       12     4  buffer_count: number of its buffers (message, announce; else zero)
//       16     8  body_bytes: length of the body, which follows the preamble
//
//   kind         body
//   1 hello      16 link token, 4 role, 4 stream index, 8 max_header_bytes, 8 max_message_bytes,
//                8 max_buffers, 8 max_assembly_bytes, 8 max_unread_bytes
//   2 message    buffer_count x 8 buffer sizes, header, buffers one after another
//   3 announce   8 transfer id, 8 piece_bytes, buffer_count x 8 buffer sizes
//   4 piece      8 transfer id, 8 offset, bytes
//   5 ack        8 transfer id: the transfer was received, and its bytes no longer count
//   6 open bulk  (empty) asks the end that dialled to open the bulk streams
//   7 goodbye    (empty) the sender closed the link; nothing follows
//   8 room       8 transfer id: the receiver has memory for all of the transfer, or drops it; more
//                pieces of it never wait. Sent if the transfer has more than kUntoldPieces pieces,
//                or if another one is under way
//   9 lent       8 lease id, buffer_count x (8 segment id, 8 offset, 8 bytes), header, the bytes of
//                the buffers whose segment id is 0 one after another (their offset is 0, too)
//  10 returned   1 to kMaxReturned times 8 lease id: nobody reads these messages any more
//  11 declined   8 lease id, 8 segment id: the receiver cannot map this segment. It has dropped the
//                message, and the sender sends it again in another way
//  12 gone       8 segment id: the sender of this frame will not name its segment any more
//  13 forgotten  8 segment id: the answer to `gone`; the segment is no longer mapped
//  14 read       4 role, 8 bytes: what the receiver has read of all messages and pieces on the
//                streams with this role (kBulk or kWhole), without preambles and tables
//
// A transfer is a message in pieces. Its bytes are the header and the buffers one after another.
// Piece k covers [k * piece_bytes, (k + 1) * piece_bytes); the last piece may be shorter. On every
// stream an announce precedes the first piece of a transfer. A transfer that uses several streams
// is therefore announced on each of them, with the same contents.
//
// A sender numbers its transfers 1, 2, 3, …, and begins them in this order. The receiver gives them
// memory in this order too, and leaves a stream unread while the piece at its front waits for
// memory. So that such a piece never keeps back another transfer that has memory already, a sender
// mixes pieces of several transfers only after the word `room` (see BulkQueue).
//
// A receiver may leave streams unread while messages wait for memory. So a sender stops when the
// messages and pieces that it has sent on the streams of one role, and of which no `read` has come,
// reach the receiver's max_unread_bytes. A receiver sends `read` at least for every half of that.
//
// A lent message leaves buffers where they are: in segments that the receiver maps (only between
// processes of one host, core/carrier/shm/lending). The sender keeps them unchanged until the
// receiver returns the lease. It numbers its leases as it likes, with no number for two leases that
// are out.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/carrier/byte_reader.h"
#include "core/carrier/carrier.h"

namespace psd::carrier {

inline constexpr size_t kPreambleBytes = 24;
inline constexpr uint8_t kFrameVersion = 2;
// Messages of at most this many bytes (header and buffers) travel in order.
inline constexpr size_t kMaxInlineBytes = size_t{64} << 10;
// A message of at most this many bytes travels as one frame, a larger one in pieces.
inline constexpr size_t kMaxWholeBytes = size_t{2} << 20;
inline constexpr size_t kMinPieceBytes = size_t{64} << 10;
inline constexpr size_t kMaxPieceBytes = size_t{16} << 20;
// A transfer with more pieces than this is answered with `room` even if it is alone.
inline constexpr size_t kUntoldPieces = 16;

// 128 random bits that bind the streams of one link together.
using LinkToken = std::array<uint8_t, 16>;

// The messages that a stream carries. kControl: those of at most kMaxInlineBytes, in order. kBulk:
// pieces of transfers. kWhole: larger messages of at most kMaxWholeBytes.
enum class StreamRole : uint32_t { kControl = 0, kBulk = 1, kWhole = 2 };

// The most ids in one frame `returned`.
inline constexpr size_t kMaxReturned = 128;
// The most bytes of a lent frame behind its lease id.
inline constexpr size_t kMaxLentFrameBytes = kMaxInlineBytes;

struct HelloFrame {
  LinkToken token = {};
  StreamRole role = StreamRole::kControl;
  uint32_t stream_index = 0;
  // The bounds of the sender of this frame, without max_send_queue_bytes, which is not sent.
  Limits limits;
  // The bytes that may be under way to the sender of this frame on the streams of one role (kBulk
  // or kWhole). A sender may exceed it by one frame.
  size_t max_unread_bytes = 0;
};

// The sizes of a message's header and buffers.
struct MessageShape {
  size_t header_bytes = 0;
  std::vector<size_t> buffer_bytes;

  size_t TotalBytes() const;
  friend bool operator==(const MessageShape& a, const MessageShape& b) {
    return a.header_bytes == b.header_bytes && a.buffer_bytes == b.buffer_bytes;
  }
};

// Returns the bytes that a message of this shape counts for while it is assembled. Each buffer is
// padded to the alignment of blocks and has an entry in a table. Both ends count in this way.
size_t AssemblyBytes(const MessageShape& shape);

struct MessageFrame {
  MessageShape shape;
  ByteReader payload;  // the header, then the buffers
};

struct AnnounceFrame {
  uint64_t transfer = 0;
  size_t piece_bytes = 0;
  MessageShape shape;
};

struct PieceFrame {
  uint64_t transfer = 0;
  uint64_t offset = 0;
  ByteReader payload;
};

struct AckFrame {
  uint64_t transfer = 0;
};
struct OpenBulkFrame {};
struct GoodbyeFrame {};
struct RoomFrame {
  uint64_t transfer = 0;
};

// A buffer of a lent message. `offset` is a multiple of kBlockAlignment.
struct LentBuffer {
  uint64_t segment = 0;  // 0: its bytes are in the frame
  uint64_t offset = 0;   // in the segment
  size_t bytes = 0;
};

struct LentFrame {
  uint64_t lease = 0;
  size_t header_bytes = 0;
  std::vector<LentBuffer> buffers;
  ByteReader payload;  // the header, then the buffers in no segment
};
struct ReturnedFrame {
  std::vector<uint64_t> leases;
};
struct DeclinedFrame {
  uint64_t lease = 0;
  uint64_t segment = 0;
};
struct GoneFrame {
  uint64_t segment = 0;
};
struct ForgottenFrame {
  uint64_t segment = 0;
};
struct ReadFrame {
  StreamRole role = StreamRole::kBulk;  // not kControl
  uint64_t bytes = 0;                   // since the link was opened
};

using Frame = std::variant<HelloFrame, MessageFrame, AnnounceFrame, PieceFrame, AckFrame,
                           OpenBulkFrame, GoodbyeFrame, RoomFrame, LentFrame, ReturnedFrame,
                           DeclinedFrame, GoneFrame, ForgottenFrame, ReadFrame>;

// Returns how many bytes at the start of a frame hold numbers (sizes, ids, offsets). `preamble` is
// its first kPreambleBytes bytes, which may be invalid; the frame may be shorter than the result.
size_t NumberBytes(absl::string_view preamble);

// Returns the bytes that a lent frame with these buffers has behind its lease id.
size_t LentFrameBytes(size_t header_bytes, const std::vector<LentBuffer>& buffers);

MessageShape ShapeOf(const Message& message);

// Errors: INVALID_ARGUMENT naming size, bound and remedy if a message of this shape exceeds
// `limits`.
absl::Status CheckShape(const MessageShape& shape, const Limits& limits);

// The position in a message up to which it has been cut into pieces.
struct PieceCursor {
  size_t offset = 0;  // counted over header and buffers
  size_t buffer = 0;  // the buffer that contains `offset`, once it is past the header
  size_t offset_in_buffer = 0;
};

// Collects frames for one network message. Payloads of at least `kReferenceBytes` are referenced;
// smaller ones are copied. Thread-compatible.
class FrameEncoder {
 public:
  static constexpr size_t kReferenceBytes = size_t{4} << 10;

  void Hello(const HelloFrame& hello);
  // Requires: CheckShape passed and the message has at most kMaxWholeBytes.
  void Whole(const Message& message);
  void Announce(const AnnounceFrame& announce);
  // Adds the next `size` bytes of `message`, starting at `cursor`, and moves `cursor` past them.
  // Requires: the message has that many bytes left.
  void Piece(uint64_t transfer, const Message& message, size_t size, PieceCursor* cursor);
  void Ack(uint64_t transfer);
  void OpenBulk();
  void Goodbye();
  void Room(uint64_t transfer);
  // Requires: CheckShape passed, `buffers` describes those of `message`, and LentFrameBytes is at
  // most kMaxLentFrameBytes.
  void Lent(uint64_t lease, const Message& message, const std::vector<LentBuffer>& buffers);
  // Requires: 1 to kMaxReturned leases.
  void Returned(absl::Span<const uint64_t> leases);
  void Declined(const DeclinedFrame& declined);
  void Gone(uint64_t segment);
  void Forgotten(uint64_t segment);
  void Read(const ReadFrame& read);

  bool empty() const { return bytes_ == 0; }
  size_t bytes() const { return bytes_; }

  // Returns all frames so far, in order. The encoder is empty afterwards.
  std::vector<Buffer> Take();

 private:
  void Preamble(uint8_t kind, size_t header_bytes, size_t buffer_count, size_t body_bytes);
  void U32(uint32_t value);
  void U64(uint64_t value);
  void Copy(absl::string_view bytes);
  void Add(const Buffer& buffer);
  void FlushTail();

  std::vector<Buffer> done_;
  std::string tail_;  // bytes behind done_ that are still growing
  size_t bytes_ = 0;
};

// Reads the frames of one network message. All sizes are checked against `limits` before they are
// used and before memory is allocated. Thread-compatible. Frames point into the reader's chunks.
class FrameDecoder {
 public:
  FrameDecoder(ByteReader bytes, const Limits& limits) : bytes_(bytes), limits_(limits) {}

  // Returns the next frame, or nullopt at the end.
  // Errors: INVALID_ARGUMENT naming the wrong field. Nothing can be read after an error.
  absl::StatusOr<std::optional<Frame>> Next();

  // The number of bytes behind the last frame.
  size_t remaining() const { return bytes_.remaining(); }

 private:
  ByteReader bytes_;
  const Limits limits_;
};

}  // namespace psd::carrier
