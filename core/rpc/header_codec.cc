#include "core/rpc/header_codec.h"

#include <google/protobuf/io/coded_stream.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/clip_text.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"
#include "core/rpc/sequence_set.h"
#include "proto/psd/v1/rpc.pb.h"

namespace psd::rpc {
namespace {

constexpr int kMaxStatusCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

// Error texts may quote anything, of any length. This bound keeps an error smaller than a message.
constexpr size_t kMaxErrorText = 4096;

// Protobuf strings must be UTF-8.
std::string Printable(absl::string_view text) {
  std::string result = ClipText(text, kMaxErrorText);
  for (char& c : result) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return result;
}

void EncodeStatus(const absl::Status& status, v1::RpcHeader& out) {
  if (status.ok()) return;
  out.set_status_code(static_cast<uint32_t>(status.code()));
  out.set_status_message(Printable(status.message()));
  if (auto detail = GetDetail(status)) {
    out.set_error_worker(Printable(detail->worker));
    out.set_error_object(Printable(detail->object));
    out.set_error_remedy(Printable(detail->remedy));
    out.set_error_fate_unknown(detail->fate_unknown);
  }
}

absl::Status DecodeStatus(const v1::RpcHeader& in) {
  if (in.status_code() == 0) return absl::OkStatus();
  absl::Status status(static_cast<absl::StatusCode>(in.status_code()), in.status_message());
  ErrorDetail detail{in.error_worker(), in.error_object(), in.error_remedy(),
                     in.error_fate_unknown()};
  return detail == ErrorDetail{} ? status : WithDetail(std::move(status), detail);
}

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("message header: ", what));
}

bool IsIntroduction(MessageKind kind) {
  return kind == MessageKind::kHello || kind == MessageKind::kWelcome ||
         kind == MessageKind::kRefused || kind == MessageKind::kSessionEnded;
}

// Checks the bounds that hold for every kind of message.
absl::Status CheckBounds(const v1::RpcHeader& in) {
  if (in.kind() < 1 || in.kind() > 12) return Bad(absl::StrCat("unknown kind ", in.kind()));
  if (!in.name().empty()) {
    const absl::Status name = CheckWorkerName(in.name());
    if (!name.ok()) return Bad(name.message());
  }
  if (in.method().size() > kMaxMethodBytes) return Bad("the method's name is too long");
  if (in.attachments_size() != in.attachment_tags_size()) return Bad("attachments without tags");
  if (in.attachments_size() > static_cast<int>(kMaxAttachments)) return Bad("too many attachments");
  if (in.ack_ranges_size() > static_cast<int>(kMaxAckRanges)) return Bad("too many ranges");
  if (in.status_code() > static_cast<uint32_t>(kMaxStatusCode)) {
    return Bad(absl::StrCat("unknown status code ", in.status_code()));
  }
  return absl::OkStatus();
}

absl::Status CheckKind(const Header& header) {
  if (!IsWellFormed(header.ack)) return Bad("acknowledged ranges out of order");
  if (IsIntroduction(header.kind) && (header.name.empty() || header.incarnation == 0)) {
    return Bad("a sender without name or incarnation");
  }
  switch (header.kind) {
    case MessageKind::kHello:
      if (header.sequence == 0) return Bad("a hello without number");
      break;
    case MessageKind::kWelcome:
      if (header.epoch == 0) return Bad("a welcome without epoch");
      break;
    case MessageKind::kRefused:
      if (header.status.ok()) return Bad("a refusal without reason");
      break;
    case MessageKind::kRequest:
      if (header.call_id == 0 || header.method.empty())
        return Bad("a request without id or method");
      break;
    case MessageKind::kReply:
    case MessageKind::kCancel:
    case MessageKind::kCancelled:
      if (header.call_id == 0) return Bad("a reply or cancel without call id");
      break;
    case MessageKind::kKeepalive:
    case MessageKind::kSessionEnded:
    case MessageKind::kGoodbye:
    case MessageKind::kLeaving:
    case MessageKind::kLeft:
      break;
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeHeader(const Header& header) {
  v1::RpcHeader out;
  out.set_kind(static_cast<uint32_t>(header.kind));
  out.set_method(header.method);
  out.set_call_id(header.call_id);
  out.set_attempt(header.attempt);
  out.set_timeout_us(header.timeout_us);
  out.set_callee_incarnation(header.callee_incarnation);
  out.set_epoch(header.epoch);
  out.set_sequence(header.sequence);
  out.set_ack_watermark(header.ack.watermark);
  if (!header.ack.ranges.empty()) {
    out.mutable_ack_ranges()->Add(header.ack.ranges.begin(), header.ack.ranges.end());
  }
  out.set_name(header.name);
  out.set_incarnation(header.incarnation);
  out.set_protocol_version(header.protocol_version);
  out.set_resumed(header.resumed);
  for (const Attachment& attachment : header.attachments) {
    out.add_attachment_tags(attachment.tag);
    out.add_attachments(attachment.bytes);
  }
  EncodeStatus(header.status, out);
  out.set_payload(header.payload);
  return out.SerializeAsString();
}

namespace {

absl::StatusOr<v1::RpcHeader> Parse(absl::string_view bytes) {
  v1::RpcHeader in;
  if (in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return in;
  return Bad("bytes that do not parse");
}

// Skips a field, whose tag was read. Headers have no groups.
bool SkipField(uint32_t tag, google::protobuf::io::CodedInputStream& in) {
  uint64_t number;
  int length;
  switch (tag & 7) {
    case 0:
      return in.ReadVarint64(&number);
    case 1:
      return in.Skip(8);
    case 2:
      return in.ReadVarintSizeAsInt(&length) && in.Skip(length);
    case 5:
      return in.Skip(4);
    default:
      return false;
  }
}

// Returns the length of the complete fields at the beginning of `bytes`.
size_t WholeFields(absl::string_view bytes) {
  google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                                            static_cast<int>(bytes.size()));
  int whole = 0;
  while (const uint32_t tag = in.ReadTag()) {
    if (!SkipField(tag, in)) break;
    whole = in.CurrentPosition();
  }
  return static_cast<size_t>(whole);
}

absl::StatusOr<Header> Convert(v1::RpcHeader in) {
  PSD_RETURN_IF_ERROR(CheckBounds(in));
  Header header;
  header.kind = static_cast<MessageKind>(in.kind());
  header.method = std::move(*in.mutable_method());
  header.call_id = in.call_id();
  header.attempt = in.attempt();
  header.timeout_us = in.timeout_us();
  header.callee_incarnation = in.callee_incarnation();
  header.epoch = in.epoch();
  header.sequence = in.sequence();
  header.ack.watermark = in.ack_watermark();
  header.ack.ranges.assign(in.ack_ranges().begin(), in.ack_ranges().end());
  header.name = std::move(*in.mutable_name());
  header.incarnation = in.incarnation();
  header.protocol_version = in.protocol_version();
  header.resumed = in.resumed();
  header.attachments.reserve(in.attachments_size());
  for (int i = 0; i < in.attachments_size(); ++i) {
    header.attachments.push_back({in.attachment_tags(i), std::move(*in.mutable_attachments(i))});
  }
  header.status = DecodeStatus(in);
  header.payload = std::move(*in.mutable_payload());
  PSD_RETURN_IF_ERROR(CheckKind(header));
  return header;
}

}  // namespace

absl::StatusOr<Header> DecodeHeader(absl::string_view bytes) {
  PSD_ASSIGN_OR_RETURN(v1::RpcHeader in, Parse(bytes));
  return Convert(std::move(in));
}

absl::StatusOr<Header> DecodeBeginning(absl::string_view bytes) {
  PSD_ASSIGN_OR_RETURN(v1::RpcHeader in, Parse(bytes.substr(0, WholeFields(bytes))));
  in.clear_attachment_tags();
  in.clear_attachments();
  PSD_ASSIGN_OR_RETURN(Header header, Convert(std::move(in)));
  header.cut = true;
  if (header.kind != MessageKind::kRequest && header.kind != MessageKind::kReply)
    return Bad("there was no room for a message of control");
  return header;
}

}  // namespace psd::rpc
