#include "core/carrier/frame.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::carrier {
namespace {

enum Kind : uint8_t {
  kHello = 1,
  kMessage = 2,
  kAnnounce = 3,
  kPiece = 4,
  kAck = 5,
  kOpenBulk = 6,
  kGoodbye = 7,
  kRoom = 8,
  kLent = 9,
  kReturned = 10,
  kDeclined = 11,
  kGone = 12,
  kForgotten = 13,
  kRead = 14,
};

constexpr size_t kLentEntryBytes = 3 * 8;
// The most numbers of a frame between its preamble and its table of buffers: those of an announce.
constexpr size_t kFixedNumberBytes = 2 * 8;
// The offsets of kind and buffer_count in a preamble.
constexpr size_t kKindOffset = 4;
constexpr size_t kBufferCountOffset = 12;

constexpr size_t kHelloBytes = 16 + 4 + 4 + 5 * 8;
constexpr size_t kBufferOverheadBytes = 64;

struct Preamble {
  uint8_t kind = 0;
  uint32_t header_bytes = 0;
  uint32_t buffer_count = 0;
  uint64_t body_bytes = 0;
};

template <typename... Args>
absl::Status Malformed(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("malformed frame: ", args...));
}

absl::StatusOr<Preamble> ReadPreamble(ByteReader& bytes) {
  if (bytes.remaining() < kPreambleBytes) {
    return Malformed("a preamble has ", kPreambleBytes, " bytes, ", bytes.remaining(), " are left");
  }
  unsigned char start[8];
  bytes.Read(start, sizeof(start));
  if (start[0] != 'p' || start[1] != 's' || start[2] != 'd') return Malformed("no psd frame");
  if (start[3] != kFrameVersion) {
    return Malformed("version ", start[3], ", this worker speaks version ", kFrameVersion,
                     "; run the same release of psd at both ends");
  }
  if (start[5] != 0 || start[6] != 0 || start[7] != 0) return Malformed("reserved bytes are set");
  Preamble preamble;
  preamble.kind = start[4];
  preamble.header_bytes = bytes.ReadU32();
  preamble.buffer_count = bytes.ReadU32();
  preamble.body_bytes = bytes.ReadU64();
  if (preamble.body_bytes > bytes.remaining()) {
    return Malformed("body of ", preamble.body_bytes, " bytes, ", bytes.remaining(), " are left");
  }
  return preamble;
}

absl::Status CheckBodyBytes(const Preamble& preamble, size_t expected) {
  if (preamble.body_bytes == expected) return absl::OkStatus();
  return Malformed("kind ", preamble.kind, " has a body of ", expected, " bytes, not ",
                   preamble.body_bytes);
}

// Reads the table of buffer sizes at the start of `body`, and checks it against the limits.
absl::StatusOr<MessageShape> ReadShape(const Preamble& preamble, ByteReader& body,
                                       const Limits& limits) {
  size_t count = preamble.buffer_count;
  if (count > limits.max_buffers) {
    return Malformed(count, " buffers, at most ", limits.max_buffers, " are accepted");
  }
  if (body.remaining() / 8 < count) return Malformed("the table of buffer sizes is cut short");
  MessageShape shape;
  shape.header_bytes = preamble.header_bytes;
  shape.buffer_bytes.reserve(count);
  size_t total = shape.header_bytes;
  for (size_t i = 0; i < count; ++i) {
    uint64_t size = body.ReadU64();
    if (size > limits.max_message_bytes || total + size > limits.max_message_bytes) {
      return Malformed("buffer ", i, " of ", size, " bytes makes the message larger than ",
                       limits.max_message_bytes, " bytes");
    }
    total += size;
    shape.buffer_bytes.push_back(size);
  }
  absl::Status fits = CheckShape(shape, limits);
  if (!fits.ok()) return Malformed(fits.message());
  return shape;
}

absl::StatusOr<StreamRole> ReadRole(ByteReader& body) {
  const uint32_t role = body.ReadU32();
  if (role > static_cast<uint32_t>(StreamRole::kWhole)) return Malformed("stream role ", role);
  return static_cast<StreamRole>(role);
}

absl::StatusOr<HelloFrame> DecodeHello(const Preamble& preamble, ByteReader body) {
  PSD_RETURN_IF_ERROR(CheckBodyBytes(preamble, kHelloBytes));
  HelloFrame hello;
  body.Read(hello.token.data(), hello.token.size());
  PSD_ASSIGN_OR_RETURN(hello.role, ReadRole(body));
  hello.stream_index = body.ReadU32();
  hello.limits.max_header_bytes = body.ReadU64();
  hello.limits.max_message_bytes = body.ReadU64();
  hello.limits.max_buffers = body.ReadU64();
  hello.limits.max_assembly_bytes = body.ReadU64();
  hello.max_unread_bytes = body.ReadU64();
  return hello;
}

absl::StatusOr<ReadFrame> DecodeRead(const Preamble& preamble, ByteReader body) {
  PSD_RETURN_IF_ERROR(CheckBodyBytes(preamble, 4 + 8));
  ReadFrame frame;
  PSD_ASSIGN_OR_RETURN(frame.role, ReadRole(body));
  if (frame.role == StreamRole::kControl) return Malformed("`read` for the control stream");
  frame.bytes = body.ReadU64();
  return frame;
}

absl::StatusOr<MessageFrame> DecodeMessage(const Preamble& preamble, ByteReader body,
                                           const Limits& limits) {
  MessageFrame frame;
  PSD_ASSIGN_OR_RETURN(frame.shape, ReadShape(preamble, body, limits));
  size_t total = frame.shape.TotalBytes();
  if (total > kMaxWholeBytes) {
    return Malformed("a message of ", total, " bytes in one frame, more than ", kMaxWholeBytes);
  }
  if (total != body.remaining()) {
    return Malformed("a message of ", total, " bytes with ", body.remaining(), " bytes of payload");
  }
  frame.payload = body;
  return frame;
}

absl::StatusOr<AnnounceFrame> DecodeAnnounce(const Preamble& preamble, ByteReader body,
                                             const Limits& limits) {
  if (body.remaining() < 16) return Malformed("an announce of ", body.remaining(), " bytes");
  AnnounceFrame frame;
  frame.transfer = body.ReadU64();
  uint64_t piece_bytes = body.ReadU64();
  if (piece_bytes < kMinPieceBytes || piece_bytes > kMaxPieceBytes) {
    return Malformed("pieces of ", piece_bytes, " bytes, between ", kMinPieceBytes, " and ",
                     kMaxPieceBytes, " are accepted");
  }
  frame.piece_bytes = piece_bytes;
  PSD_ASSIGN_OR_RETURN(frame.shape, ReadShape(preamble, body, limits));
  if (body.remaining() != 0) return Malformed(body.remaining(), " bytes behind an announce");
  if (frame.shape.TotalBytes() == 0) return Malformed("an announce of an empty message");
  return frame;
}

absl::StatusOr<PieceFrame> DecodePiece(ByteReader body) {
  if (body.remaining() <= 16) return Malformed("a piece of ", body.remaining(), " bytes");
  PieceFrame frame;
  frame.transfer = body.ReadU64();
  frame.offset = body.ReadU64();
  if (body.remaining() > kMaxPieceBytes) {
    return Malformed("a piece of ", body.remaining(), " bytes, more than ", kMaxPieceBytes);
  }
  frame.payload = body;
  return frame;
}

absl::StatusOr<LentBuffer> ReadLentBuffer(ByteReader& body) {
  LentBuffer buffer;
  buffer.segment = body.ReadU64();
  buffer.offset = body.ReadU64();
  buffer.bytes = body.ReadU64();
  if (buffer.segment == 0 && buffer.offset != 0) {
    return Malformed("a buffer in no segment at ", buffer.offset);
  }
  if (buffer.offset % kBlockAlignment != 0) {
    return Malformed("a lent buffer at ", buffer.offset, ", which is no multiple of ",
                     kBlockAlignment);
  }
  return buffer;
}

absl::StatusOr<LentFrame> DecodeLent(const Preamble& preamble, ByteReader body,
                                     const Limits& limits) {
  const size_t count = preamble.buffer_count;
  if (body.remaining() < 8 || body.remaining() - 8 > kMaxLentFrameBytes) {
    return Malformed("a lent frame with a body of ", body.remaining(), " bytes");
  }
  LentFrame frame;
  frame.lease = body.ReadU64();
  if (body.remaining() / kLentEntryBytes < count) {
    return Malformed("the table of lent buffers is cut short");
  }
  MessageShape shape;
  shape.header_bytes = frame.header_bytes = preamble.header_bytes;
  size_t inside = frame.header_bytes;
  size_t total = frame.header_bytes;
  for (size_t i = 0; i < count; ++i) {
    PSD_ASSIGN_OR_RETURN(const LentBuffer buffer, ReadLentBuffer(body));
    if (buffer.bytes > limits.max_message_bytes ||
        total + buffer.bytes > limits.max_message_bytes) {
      return Malformed("lent buffer ", i, " of ", buffer.bytes,
                       " bytes makes the message larger than ", limits.max_message_bytes, " bytes");
    }
    total += buffer.bytes;
    if (buffer.segment == 0) inside += buffer.bytes;
    frame.buffers.push_back(buffer);
    shape.buffer_bytes.push_back(buffer.bytes);
  }
  const absl::Status fits = CheckShape(shape, limits);
  if (!fits.ok()) return Malformed(fits.message());
  if (inside != body.remaining()) {
    return Malformed("a lent message with ", body.remaining(), " bytes in its frame, not ", inside);
  }
  if (inside == total) return Malformed("a lent message that lends nothing");
  frame.payload = body;
  return frame;
}

absl::StatusOr<ReturnedFrame> DecodeReturned(ByteReader body) {
  if (body.remaining() == 0 || body.remaining() % 8 != 0 || body.remaining() / 8 > kMaxReturned) {
    return Malformed("returned leases in ", body.remaining(), " bytes");
  }
  ReturnedFrame frame;
  while (body.remaining() > 0) frame.leases.push_back(body.ReadU64());
  return frame;
}

template <typename T>
absl::StatusOr<std::optional<Frame>> Wrap(absl::StatusOr<T> frame) {
  if (!frame.ok()) return std::move(frame).status();
  return std::optional<Frame>(Frame(*std::move(frame)));
}

bool HasMessageFields(uint8_t kind) {
  return kind == kMessage || kind == kAnnounce || kind == kLent;
}

// A frame whose body is one number.
template <typename T>
absl::StatusOr<std::optional<Frame>> DecodeId(const Preamble& preamble, ByteReader body) {
  PSD_RETURN_IF_ERROR(CheckBodyBytes(preamble, 8));
  return std::optional<Frame>(Frame(T{body.ReadU64()}));
}

}  // namespace

size_t NumberBytes(absl::string_view preamble) {
  uint32_t buffers = 0;
  std::memcpy(&buffers, preamble.data() + kBufferCountOffset, sizeof(buffers));
  const bool lent = preamble[kKindOffset] == static_cast<char>(kLent);
  return kPreambleBytes + kFixedNumberBytes + (lent ? kLentEntryBytes : size_t{8}) * buffers;
}

size_t LentFrameBytes(size_t header_bytes, const std::vector<LentBuffer>& buffers) {
  size_t bytes = header_bytes + buffers.size() * kLentEntryBytes;
  for (const LentBuffer& buffer : buffers) bytes += buffer.segment == 0 ? buffer.bytes : 0;
  return bytes;
}

size_t MessageShape::TotalBytes() const {
  size_t total = header_bytes;
  for (size_t bytes : buffer_bytes) total += bytes;
  return total;
}

size_t AssemblyBytes(const MessageShape& shape) {
  size_t total = shape.header_bytes;
  for (size_t bytes : shape.buffer_bytes) {
    total += (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  }
  return total + shape.buffer_bytes.size() * kBufferOverheadBytes;
}

MessageShape ShapeOf(const Message& message) {
  MessageShape shape;
  shape.header_bytes = message.header.size();
  shape.buffer_bytes.reserve(message.buffers.size());
  for (const Buffer& buffer : message.buffers) shape.buffer_bytes.push_back(buffer.size());
  return shape;
}

absl::Status CheckShape(const MessageShape& shape, const Limits& limits) {
  if (shape.header_bytes > limits.max_header_bytes) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "a message header of ", shape.header_bytes,
                          " bytes exceeds max_header_bytes = ", limits.max_header_bytes)),
                      "send less per message or raise the limit");
  }
  if (shape.buffer_bytes.size() > limits.max_buffers) {
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat("a message with ", shape.buffer_bytes.size(),
                                       " buffers exceeds max_buffers = ", limits.max_buffers)),
                      "send fewer per message or raise the limit");
  }
  size_t total = shape.TotalBytes();
  if (total > limits.max_message_bytes) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                          "a message of ", total,
                          " bytes exceeds max_message_bytes = ", limits.max_message_bytes)),
                      "send less per message or raise the limit");
  }
  size_t cost = AssemblyBytes(shape);
  if (total > kMaxInlineBytes && cost > limits.max_assembly_bytes) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(
            "a message that takes ", cost,
            " bytes to assemble exceeds max_assembly_bytes = ", limits.max_assembly_bytes)),
        "send less per message or raise the limit");
  }
  return absl::OkStatus();
}

void FrameEncoder::Hello(const HelloFrame& hello) {
  Preamble(kHello, 0, 0, kHelloBytes);
  Copy({reinterpret_cast<const char*>(hello.token.data()), hello.token.size()});
  U32(static_cast<uint32_t>(hello.role));
  U32(hello.stream_index);
  U64(hello.limits.max_header_bytes);
  U64(hello.limits.max_message_bytes);
  U64(hello.limits.max_buffers);
  U64(hello.limits.max_assembly_bytes);
  U64(hello.max_unread_bytes);
}

void FrameEncoder::Whole(const Message& message) {
  size_t count = message.buffers.size();
  if (tail_.empty()) tail_.reserve(kPreambleBytes + 8 * count + message.header.size());
  Preamble(kMessage, message.header.size(), count, 8 * count + message.TotalBytes());
  for (const Buffer& buffer : message.buffers) U64(buffer.size());
  Copy(message.header);
  for (const Buffer& buffer : message.buffers) Add(buffer);
}

void FrameEncoder::Announce(const AnnounceFrame& announce) {
  size_t count = announce.shape.buffer_bytes.size();
  Preamble(kAnnounce, announce.shape.header_bytes, count, 16 + 8 * count);
  U64(announce.transfer);
  U64(announce.piece_bytes);
  for (size_t bytes : announce.shape.buffer_bytes) U64(bytes);
}

void FrameEncoder::Piece(uint64_t transfer, const Message& message, size_t size,
                         PieceCursor* cursor) {
  Preamble(kPiece, 0, 0, 16 + size);
  U64(transfer);
  U64(cursor->offset);
  size_t header_bytes = message.header.size();
  if (cursor->offset < header_bytes) {
    size_t part = std::min(size, header_bytes - cursor->offset);
    Copy(absl::string_view(message.header).substr(cursor->offset, part));
    cursor->offset += part;
    size -= part;
  }
  while (size > 0) {
    const Buffer& buffer = message.buffers[cursor->buffer];
    size_t part = std::min(size, buffer.size() - cursor->offset_in_buffer);
    Add(buffer.Slice(cursor->offset_in_buffer, part));
    cursor->offset += part;
    cursor->offset_in_buffer += part;
    size -= part;
    if (cursor->offset_in_buffer == buffer.size()) {
      ++cursor->buffer;
      cursor->offset_in_buffer = 0;
    }
  }
}

void FrameEncoder::Ack(uint64_t transfer) {
  Preamble(kAck, 0, 0, 8);
  U64(transfer);
}

void FrameEncoder::OpenBulk() {
  Preamble(kOpenBulk, 0, 0, 0);
}

void FrameEncoder::Goodbye() {
  Preamble(kGoodbye, 0, 0, 0);
}

void FrameEncoder::Room(uint64_t transfer) {
  Preamble(kRoom, 0, 0, 8);
  U64(transfer);
}

void FrameEncoder::Lent(uint64_t lease, const Message& message,
                        const std::vector<LentBuffer>& buffers) {
  Preamble(kLent, message.header.size(), buffers.size(),
           8 + LentFrameBytes(message.header.size(), buffers));
  U64(lease);
  for (const LentBuffer& buffer : buffers) {
    U64(buffer.segment);
    U64(buffer.offset);
    U64(buffer.bytes);
  }
  Copy(message.header);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].segment == 0) Add(message.buffers[i]);
  }
}

void FrameEncoder::Returned(absl::Span<const uint64_t> leases) {
  Preamble(kReturned, 0, 0, 8 * leases.size());
  for (const uint64_t lease : leases) U64(lease);
}

void FrameEncoder::Declined(const DeclinedFrame& declined) {
  Preamble(kDeclined, 0, 0, 16);
  U64(declined.lease);
  U64(declined.segment);
}

void FrameEncoder::Gone(uint64_t segment) {
  Preamble(kGone, 0, 0, 8);
  U64(segment);
}

void FrameEncoder::Forgotten(uint64_t segment) {
  Preamble(kForgotten, 0, 0, 8);
  U64(segment);
}

void FrameEncoder::Read(const ReadFrame& read) {
  Preamble(kRead, 0, 0, 4 + 8);
  U32(static_cast<uint32_t>(read.role));
  U64(read.bytes);
}

std::vector<Buffer> FrameEncoder::Take() {
  FlushTail();
  bytes_ = 0;
  return std::exchange(done_, {});
}

void FrameEncoder::Preamble(uint8_t kind, size_t header_bytes, size_t buffer_count,
                            size_t body_bytes) {
  const char start[8] = {'p', 's', 'd', static_cast<char>(kFrameVersion), static_cast<char>(kind)};
  Copy({start, sizeof(start)});
  U32(static_cast<uint32_t>(header_bytes));
  U32(static_cast<uint32_t>(buffer_count));
  U64(body_bytes);
}

void FrameEncoder::U32(uint32_t value) {
  char bytes[4];
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  Copy({bytes, sizeof(bytes)});
}

void FrameEncoder::U64(uint64_t value) {
  char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  Copy({bytes, sizeof(bytes)});
}

void FrameEncoder::Copy(absl::string_view bytes) {
  tail_.append(bytes.data(), bytes.size());
  bytes_ += bytes.size();
}

void FrameEncoder::Add(const Buffer& buffer) {
  if (buffer.size() < kReferenceBytes) return Copy(buffer.view());
  FlushTail();
  done_.push_back(buffer);
  bytes_ += buffer.size();
}

void FrameEncoder::FlushTail() {
  if (tail_.empty()) return;
  done_.push_back(Buffer::FromString(std::exchange(tail_, {})));
}

absl::StatusOr<std::optional<Frame>> FrameDecoder::Next() {
  if (bytes_.remaining() == 0) return std::optional<Frame>();
  PSD_ASSIGN_OR_RETURN(struct Preamble preamble, ReadPreamble(bytes_));
  ByteReader body = bytes_.Take(preamble.body_bytes);
  if (!HasMessageFields(preamble.kind) &&
      (preamble.header_bytes != 0 || preamble.buffer_count != 0)) {
    return Malformed("kind ", preamble.kind, " with a header or buffers");
  }
  switch (preamble.kind) {
    case kHello:
      return Wrap(DecodeHello(preamble, body));
    case kMessage:
      return Wrap(DecodeMessage(preamble, body, limits_));
    case kAnnounce:
      return Wrap(DecodeAnnounce(preamble, body, limits_));
    case kPiece:
      return Wrap(DecodePiece(body));
    case kAck:
      return DecodeId<AckFrame>(preamble, body);
    case kOpenBulk:
      PSD_RETURN_IF_ERROR(CheckBodyBytes(preamble, 0));
      return Wrap(absl::StatusOr<OpenBulkFrame>(OpenBulkFrame{}));
    case kGoodbye:
      PSD_RETURN_IF_ERROR(CheckBodyBytes(preamble, 0));
      return Wrap(absl::StatusOr<GoodbyeFrame>(GoodbyeFrame{}));
    case kRoom:
      return DecodeId<RoomFrame>(preamble, body);
    case kLent:
      return Wrap(DecodeLent(preamble, body, limits_));
    case kReturned:
      return Wrap(DecodeReturned(body));
    case kDeclined: {
      PSD_RETURN_IF_ERROR(CheckBodyBytes(preamble, 16));
      const uint64_t lease = body.ReadU64();
      return std::optional<Frame>(Frame(DeclinedFrame{lease, body.ReadU64()}));
    }
    case kGone:
      return DecodeId<GoneFrame>(preamble, body);
    case kForgotten:
      return DecodeId<ForgottenFrame>(preamble, body);
    case kRead:
      return Wrap(DecodeRead(preamble, body));
    default:
      return Malformed("unknown kind ", preamble.kind);
  }
}

}  // namespace psd::carrier
