#pragma once

// The attributes of an operator call: its arguments that are no tensors.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace psd {

using AttributeValue = std::variant<int64_t, double, std::vector<int64_t>>;
// Attributes by name. A truth value is an int64_t, 0 or 1; a dtype is its number
// (core/tensor/dtype.h).
using Attributes = std::map<std::string, AttributeValue, std::less<>>;

}  // namespace psd
