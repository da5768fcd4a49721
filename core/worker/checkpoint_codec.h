#pragma once

// OwnerContents <-> proto/psd/v1/checkpoint.proto.

#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/worker/checkpoint_types.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::worker {

v1::OwnerContents EncodeContents(const OwnerContents& contents);

// Nothing about `message` is believed. Errors: INVALID_ARGUMENT naming the value or optimizer.
absl::StatusOr<OwnerContents> DecodeContents(const v1::OwnerContents& message);

void EncodeArrays(const std::vector<checkpoint::TensorSpec>& arrays, v1::RoomRequest& message);
// Errors: INVALID_ARGUMENT.
absl::StatusOr<std::vector<checkpoint::TensorSpec>> DecodeArrays(const v1::RoomRequest& message);

}  // namespace psd::worker
