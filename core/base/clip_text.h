#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace psd {

// Returns `text` if it has at most `most` bytes. A longer text is cut in the middle: the result has
// `most` bytes from its beginning and its end, and between them a note of how many bytes are left
// out. The end is kept because the remedy of an error is there.
std::string ClipText(absl::string_view text, size_t most);

}  // namespace psd
