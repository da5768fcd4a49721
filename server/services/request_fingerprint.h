#pragma once

// Distinguishes a repeated request of the unary service from another one with the same sequence
// number.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace psd::server {

// Returns a checksum of the method's name and the serialized `request` without its field 1, which
// must be `header`: that field changes in a repetition, which may acknowledge more answers. The
// request is read piece by piece and not copied. The checksum finds mistakes of clients; it does
// not protect against forgery, by which a client could harm only itself.
uint64_t RequestFingerprint(absl::string_view method, const google::protobuf::MessageLite& request,
                            const google::protobuf::MessageLite& header);

}  // namespace psd::server
