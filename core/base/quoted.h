#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace psd {

// Returns foreign text in a form that is safe in a message: in single quotes, cut off after 64
// bytes, and with '?' for every byte that is not printable ASCII.
std::string Quoted(absl::string_view text);

}  // namespace psd
