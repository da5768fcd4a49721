#pragma once

// The table behind OperatorRegistry::Builtin.

#include <vector>

#include "core/autograd/operators.h"

namespace psd {

std::vector<OperatorSpec> BuiltinOperators();

}  // namespace psd
