#pragma once

// Converts headers to bytes (proto psd.v1.RpcHeader) and back.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/rpc/header.h"

namespace psd::rpc {

// Bounds on the contents of a header. A peer that sends more breaks the protocol.
inline constexpr size_t kMaxMethodBytes = 255;
inline constexpr size_t kMaxAttachments = 1024;
inline constexpr size_t kMaxAckRanges = 64 * 1024;

// Never fails. In the text of a status, bytes that are not valid UTF-8 are replaced, and the middle
// of a very long text is left out.
std::string EncodeHeader(const Header& header);

// Errors: INVALID_ARGUMENT naming the fault: bytes that do not parse, an unknown kind, or lengths
// and combinations of fields that the protocol does not allow.
absl::StatusOr<Header> DecodeHeader(absl::string_view bytes);

// Decodes the beginning of a header, which is all that was kept of a message without room. Sets
// Header::cut in the result. Errors: those of DecodeHeader; INVALID_ARGUMENT if the message is
// neither a request nor a reply.
absl::StatusOr<Header> DecodeBeginning(absl::string_view bytes);

}  // namespace psd::rpc
