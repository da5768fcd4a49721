#pragma once

// Calls and failures of a group on the wire.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/services/collectives/collective_call.h"

namespace psd::v1 {
class CollectiveCall;
class CollectiveEnd;
class CollectiveTaken;
}  // namespace psd::v1

namespace psd::services {

void EncodeCall(const CollectiveCall& call, v1::CollectiveCall& out);
// Errors: INVALID_ARGUMENT naming the field; the result may still break the rules of CheckCall.
absl::StatusOr<CollectiveCall> DecodeCall(const v1::CollectiveCall& in);

// The form of a tensor that is sent from rank to rank. Errors: INVALID_ARGUMENT naming the field.
void EncodeForm(const TensorForm& form, v1::CollectiveTaken& out);
absl::StatusOr<TensorForm> DecodeForm(const v1::CollectiveTaken& in);

// Requires: `failure` is not OK.
void EncodeFailure(const absl::Status& failure, v1::CollectiveEnd& out);
// Never OK: a failure without a valid code is UNKNOWN.
absl::Status DecodeFailure(const v1::CollectiveEnd& in);

}  // namespace psd::services
