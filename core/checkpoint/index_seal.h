#pragma once

// The seal of index.json is its last member: the checksum of all bytes before the line that holds
// it. `head -n -2 index.json | xxhsum -H128` prints the same digits.
//
//    "left_out": [],
//    "index_xxh128": "f6df2c1d0a7d3b3e7b8e0c0d5a1b2c3d"
//   }

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd::checkpoint {

// Returns `json` with a seal. Requires: `json` is an indented JSON object with members, which ends
// with "\n}".
std::string SealIndex(absl::string_view json);

// Checks that `text` is, byte for byte, a result of SealIndex. Errors: DATA_LOSS naming both
// checksums, or saying that the text does not end with a seal.
absl::Status CheckIndexSeal(absl::string_view text);

}  // namespace psd::checkpoint
