#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace psd {

// Text that came from outside, fit to stand in a message: in quotes, on one line, and cut off after
// 64 characters.
std::string Quoted(absl::string_view text);

}  // namespace psd
