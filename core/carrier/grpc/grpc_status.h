#pragma once

// gRPC's outcomes in the carrier contract's terms.

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace psd::carrier {

// Why a link to `address` could not be opened: UNAVAILABLE, with "refused" if nobody listens.
absl::Status DialError(const std::string& address, const grpc::Status& status);

// Why an open link ended: INVALID_ARGUMENT if the peer sent more than any honest one, else
// UNAVAILABLE.
absl::Status LostError(const std::string& address, const grpc::Status& status);

// `reason` as an outcome of Connect: DEADLINE_EXCEEDED stays, all else is UNAVAILABLE.
absl::Status ConnectError(const absl::Status& reason);

}  // namespace psd::carrier
