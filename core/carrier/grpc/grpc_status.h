#pragma once

// Translates gRPC's statuses into the errors that carrier.h promises.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace psd::carrier {

// The error for a link to `address` that could not be opened: UNAVAILABLE, with "refused" in its
// text if nobody listens.
absl::Status DialError(const std::string& address, const grpc::Status& status);

// The error for an open link that ended: INVALID_ARGUMENT if the peer sent a message that is larger
// than the protocol allows, else UNAVAILABLE.
absl::Status LostError(const std::string& address, const grpc::Status& status);

}  // namespace psd::carrier
