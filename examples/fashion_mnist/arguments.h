#pragma once

// Command-line arguments that the example's programs share.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/psd.h"

namespace psd::examples {

// Parses "owner0=127.0.0.1:7071,owner1=127.0.0.1:7072".
// Errors: INVALID_ARGUMENT for a text of another form, without an owner, or with one owner twice.
absl::StatusOr<std::vector<OwnerAddress>> ParseOwners(absl::string_view text);

// A part of the data. "0/2" is the first half.
struct Part {
  int part = 0;
  int parts = 1;
};
// Parses "part/parts". Errors: INVALID_ARGUMENT unless 0 <= part < parts.
absl::StatusOr<Part> ParsePart(absl::string_view text);

std::vector<std::string> NamesOf(const std::vector<OwnerAddress>& owners);

}  // namespace psd::examples
