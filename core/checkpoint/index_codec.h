#pragma once

// CheckpointIndex <-> the text of index.json (see docs/operations.md for its members).

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/checkpoint/checkpoint_index.h"

namespace psd::checkpoint {

// Indented, for people; the same index gives the same text.
std::string EncodeIndex(const CheckpointIndex& index);

// Nothing about `text` is believed: it has its checksum (index_seal.h), file names stay within the
// folder, what refers to a file, a value or a parameter refers to one that is there, and nothing is
// there twice.
// Errors: INVALID_ARGUMENT naming the member; DATA_LOSS when the checksum is missing or another;
// FAILED_PRECONDITION for another format version.
absl::StatusOr<CheckpointIndex> DecodeIndex(absl::string_view text);

}  // namespace psd::checkpoint
