#pragma once

// Converts CheckpointIndex to the text of index.json and back (see docs/operations.md for its
// members).

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/checkpoint/checkpoint_index.h"

namespace psd::checkpoint {

// The text is indented for people. The same index always gives the same text.
std::string EncodeIndex(const CheckpointIndex& index);

// Decodes and checks a text from outside. The checksum must be right (index_seal.h), file names
// must not lead out of the folder, every reference must be to an existing file, value or parameter,
// and nothing may be listed twice. Errors: INVALID_ARGUMENT naming the member; DATA_LOSS if the
// checksum is missing or wrong; FAILED_PRECONDITION for another format version.
absl::StatusOr<CheckpointIndex> DecodeIndex(absl::string_view text);

}  // namespace psd::checkpoint
