#pragma once

// "Did you mean …": the known name that looks most like a given one.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace psd::rpc {

// The element of `known` with the least edit distance to `name`, ties by alphabet. Empty when
// `known` is empty. Names beyond the first 1,024 are not looked at.
std::string NearestName(absl::string_view name, const std::vector<std::string>& known);

}  // namespace psd::rpc
