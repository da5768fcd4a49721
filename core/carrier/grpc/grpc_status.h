#pragma once

// Translates gRPC's statuses into the errors that carrier.h promises.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace psd::carrier {

// Returns the error for a link to `address` that could not be opened: UNAVAILABLE, with "refused"
// in its text if nobody listens there.
absl::Status DialError(const std::string& address, const grpc::Status& status);

// Returns the error for an open link that ended: INVALID_ARGUMENT if the peer sent a message that
// is larger than the protocol allows, otherwise UNAVAILABLE.
absl::Status LostError(const std::string& address, const grpc::Status& status);

}  // namespace psd::carrier
