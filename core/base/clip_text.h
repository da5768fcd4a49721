#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace psd {

// `text` if it has at most `most` bytes. Otherwise its beginning and its end, `most` bytes
// together, with a note between them of how many bytes are left out: what is to be done stands at
// the end of an error's text.
std::string ClipText(absl::string_view text, size_t most);

}  // namespace psd
