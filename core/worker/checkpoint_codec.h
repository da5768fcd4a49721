#pragma once

// OwnerContents <-> proto/psd/v1/checkpoint.proto.

#include "absl/status/statusor.h"
#include "core/worker/checkpoint_types.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::worker {

v1::OwnerContents EncodeContents(const OwnerContents& contents);

// Nothing about `message` is believed. Errors: INVALID_ARGUMENT naming the value or optimizer.
absl::StatusOr<OwnerContents> DecodeContents(const v1::OwnerContents& message);

}  // namespace psd::worker
