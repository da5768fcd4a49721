#pragma once

// Converts OwnerContents and other types of checkpoint_types.h to the messages of
// proto/psd/v1/checkpoint.proto and back. Decoders check everything, because messages come from
// outside.

#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/services/checkpoint/checkpoint_types.h"
#include "proto/psd/v1/checkpoint.pb.h"

namespace psd::services {

v1::OwnerContents EncodeContents(const OwnerContents& contents);

// Errors: INVALID_ARGUMENT naming the value or optimizer.
absl::StatusOr<OwnerContents> DecodeContents(const v1::OwnerContents& message);

v1::ExportItem EncodeItem(const ExportItem& item);
// Returns the versions and counts of steps of a reply. The tensors are left undefined.
Exported DecodeWithoutTensors(const v1::ExportReply& message);

// `id` names copies that are held, or a room.
v1::PieceRequest EncodePiece(GlobalId id, const PieceRange& range);

void EncodeArrays(const std::vector<checkpoint::TensorSpec>& arrays, v1::RoomRequest& message);
// Errors: INVALID_ARGUMENT.
absl::StatusOr<std::vector<checkpoint::TensorSpec>> DecodeArrays(const v1::RoomRequest& message);

void EncodeOwnFiles(const OwnFiles& files, v1::OpenSaveRequest& message);
// Names and paths are not checked. Errors: INVALID_ARGUMENT.
absl::StatusOr<OwnFiles> DecodeOwnFiles(const v1::OpenSaveRequest& message);

v1::FinishSaveReply EncodeFinished(const std::vector<checkpoint::SavedFile>& files);
// Errors: INVALID_ARGUMENT.
absl::StatusOr<std::vector<checkpoint::SavedFile>> DecodeFinished(
    const v1::FinishSaveReply& message);

}  // namespace psd::services
