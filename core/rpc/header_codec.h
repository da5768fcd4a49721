#pragma once

// Headers as bytes (proto psd.v1.RpcHeader) and back.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/rpc/header.h"

namespace psd::rpc {

// Bounds on what a header may hold; a peer that sends more is no honest peer.
inline constexpr size_t kMaxMethodBytes = 255;
inline constexpr size_t kMaxAttachments = 1024;
inline constexpr size_t kMaxAckRanges = 64 * 1024;

// Never fails. Texts of a status that are no UTF-8 are sent with the offending bytes replaced, and
// very long ones without their middle.
std::string EncodeHeader(const Header& header);

// Errors: INVALID_ARGUMENT naming what is wrong: bytes that do not parse, an unknown kind, lengths
// and combinations that no honest peer sends.
absl::StatusOr<Header> DecodeHeader(absl::string_view bytes);

}  // namespace psd::rpc
