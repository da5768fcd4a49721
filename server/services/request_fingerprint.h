#pragma once

// Distinguishes a repeated request of the unary service from another one with the same sequence
// number.

#include <string>

#include "google/protobuf/message_lite.h"

namespace psd::server {

// Returns a checksum of the serialized `request` without its field 1, which must be `header`: that
// field changes in a repetition, which may acknowledge more answers. The request is read piece by
// piece and not copied. The checksum finds mistakes of clients, not forgeries, with which a client
// could harm only itself.
std::string RequestFingerprint(const google::protobuf::MessageLite& request,
                               const google::protobuf::MessageLite& header);

}  // namespace psd::server
