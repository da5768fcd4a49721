#pragma once

// Tells a repeated request of the unary service from another one under the same sequence number.

#include <string>

#include "google/protobuf/message_lite.h"

namespace psd::server {

// A checksum of `request` as it is serialized, but for its field 1, which must be `header`: a
// repetition acknowledges more answers there. Reads the request piece by piece and does not copy
// it. Finds the mistakes of clients, not forgeries: a client can only harm itself with one.
std::string RequestFingerprint(const google::protobuf::MessageLite& request,
                               const google::protobuf::MessageLite& header);

}  // namespace psd::server
