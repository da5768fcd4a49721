#pragma once

// Helpers for the services: put protobuf messages into requests and replies, and parse them.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/rpc/rpc_agent.h"

namespace psd::rpc {

// The tag of the attachment for a service's own fields, used when the payload holds values.
inline constexpr uint32_t kFieldsTag = 3;

// Returns a request without values, whose header is `message`.
template <typename Message>
rpc::Request PlainRequest(std::string method, const Message& message) {
  rpc::Request request;
  request.method = std::move(method);
  message.SerializeToString(&request.payload.header);
  return request;
}

template <typename Message>
rpc::Payload PlainPayload(const Message& message) {
  rpc::Payload payload;
  message.SerializeToString(&payload.header);
  return payload;
}

// Returns an id for the caller's session. No other session has the same id.
inline GlobalId SessionOf(const rpc::ServerCall& call) {
  return {call.caller().incarnation, call.session_epoch()};
}

// Returns the id in a request.
template <typename Message>
GlobalId IdOf(const Message& message) {
  return {message.incarnation(), message.counter()};
}

template <typename Message>
rpc::Attachment FieldsAttachment(const Message& message) {
  rpc::Attachment attachment{kFieldsTag, {}};
  message.SerializeToString(&attachment.bytes);
  return attachment;
}

// Errors: INVALID_ARGUMENT naming `what` for more bytes than Protocol Buffers can parse.
inline absl::Status CheckParsable(size_t bytes, absl::string_view what) {
  if (bytes <= size_t{std::numeric_limits<int>::max()}) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": ", bytes, " bytes; a message has at most ", std::numeric_limits<int>::max()));
}

// Parses `bytes`. Errors: INVALID_ARGUMENT naming `what`.
template <typename Message>
absl::StatusOr<Message> ParseMessage(absl::string_view bytes, absl::string_view what) {
  PSD_RETURN_IF_ERROR(CheckParsable(bytes.size(), what));
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", bytes.size(),
                     " header bytes are no message of this method; do both workers "
                     "run compatible versions?"));
  }
  return message;
}

// Returns the fields that the caller attached. Errors: INVALID_ARGUMENT.
template <typename Message>
absl::StatusOr<Message> ParseFields(const rpc::ServerCall& call) {
  const std::string* bytes = call.attachment(kFieldsTag);
  if (bytes == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(call.method(), ": the request has no fields"));
  }
  return ParseMessage<Message>(*bytes, call.method());
}

// Returns the fields that the callee attached. Errors: INVALID_ARGUMENT.
template <typename Message>
absl::StatusOr<Message> ParseFields(const rpc::Reply& reply, absl::string_view what) {
  for (const rpc::Attachment& attachment : reply.attachments) {
    if (attachment.tag == kFieldsTag) return ParseMessage<Message>(attachment.bytes, what);
  }
  return absl::InvalidArgumentError(absl::StrCat(what, ": the reply has no fields"));
}

}  // namespace psd::rpc
