#include "core/carrier/link_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/carrier/frame.h"

namespace psd::carrier {

Limits SmallerLimits(const Limits& own, const Limits& peer) {
  Limits limits = own;
  limits.max_header_bytes = std::min(own.max_header_bytes, peer.max_header_bytes);
  limits.max_message_bytes = std::min(own.max_message_bytes, peer.max_message_bytes);
  limits.max_buffers = std::min(own.max_buffers, peer.max_buffers);
  limits.max_assembly_bytes = std::min(own.max_assembly_bytes, peer.max_assembly_bytes);
  return limits;
}

absl::Status CheckMaySend(const Message& message, size_t queued_bytes, const Limits& limits,
                          const std::string& address) {
  PSD_RETURN_IF_ERROR(CheckShape(ShapeOf(message), limits));
  const size_t bytes = message.TotalBytes();
  if (message.buffers.empty() || queued_bytes + bytes <= limits.max_send_queue_bytes) {
    return absl::OkStatus();
  }
  return WithRemedy(
      absl::ResourceExhaustedError(absl::StrCat(
          "a message of ", bytes, " bytes to ", address, " with ", queued_bytes,
          " bytes waiting exceeds max_send_queue_bytes = ", limits.max_send_queue_bytes)),
      "wait for earlier ones or raise the limit");
}

absl::StatusOr<MemoryCharge> ChargeQueued(const Message& message, MemoryAccount& account,
                                          const std::string& address) {
  size_t bytes = message.header.size() + message.buffers.size() * sizeof(Buffer);
  for (const Buffer& buffer : message.buffers) {
    if (buffer.size() < kMovableBytes) bytes += buffer.size();
  }
  absl::StatusOr<MemoryCharge> charge = account.Charge(bytes);
  if (charge.ok()) return charge;
  return Annotate(charge.status(), absl::StrCat("a message to ", address, " cannot be queued"));
}

absl::Status ConnectError(const absl::Status& reason) {
  if (reason.code() == absl::StatusCode::kDeadlineExceeded ||
      reason.code() == absl::StatusCode::kUnavailable) {
    return reason;
  }
  return absl::UnavailableError(reason.message());
}

}  // namespace psd::carrier
