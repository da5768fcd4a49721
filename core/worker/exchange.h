#pragma once

// What all services share: values in and out of messages, with the history that a context records,
// and the services' own headers.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/dist_autograd/context.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref.h"
#include "core/store/value.h"
#include "core/worker/functions.h"

namespace psd::worker {

class Runtime;

// The attachment in which a service puts its own fields when the payload holds values.
inline constexpr uint32_t kFieldsTag = 3;

using ContextPtr = std::shared_ptr<dist_autograd::ContextState>;

// Caller: `values` as the payload of a request to `callee`, recorded in `context` if there is one.
// The values (and the forks among them) must be kept until the reply has come.
absl::StatusOr<rpc::Request> EncodeRequest(Runtime& runtime, std::string method,
                                           const std::string& callee, const Values& values,
                                           const ContextPtr& context);
// Caller: the values that the callee answered.
absl::StatusOr<Values> DecodeReply(Runtime& runtime, const ContextPtr& context,
                                   const rpc::Reply& reply);

// Callee: what EncodeRequest made.
struct Arguments {
  Values values;
  ContextPtr context;  // null outside one
};
absl::StatusOr<Arguments> DecodeRequest(Runtime& runtime, rpc::ServerCall& call);
// Callee: answers with values or an error.
void ReplyWithValues(Runtime& runtime, rpc::ServerCall& call, const ContextPtr& context,
                     const absl::StatusOr<Values>& result);

// A request without values: the header is `message`.
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

template <typename Message>
rpc::Attachment FieldsAttachment(const Message& message) {
  rpc::Attachment attachment{kFieldsTag, {}};
  message.SerializeToString(&attachment.bytes);
  return attachment;
}

// `bytes` as a Message. Errors: INVALID_ARGUMENT naming `what`.
template <typename Message>
absl::StatusOr<Message> ParseMessage(const std::string& bytes, absl::string_view what) {
  Message message;
  if (!message.ParseFromString(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": ", bytes.size(), " header bytes are no message of this method; do both workers "
        "run compatible versions?"));
  }
  return message;
}

// The fields that a caller attached. Errors: INVALID_ARGUMENT.
template <typename Message>
absl::StatusOr<Message> ParseFields(const rpc::ServerCall& call) {
  const std::string* bytes = call.attachment(kFieldsTag);
  if (bytes == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(call.method(), ": the request has no fields"));
  }
  return ParseMessage<Message>(*bytes, call.method());
}

}  // namespace psd::worker
