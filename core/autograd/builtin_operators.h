#pragma once

// The table of operators from which OperatorRegistry::Builtin is made.

#include <vector>

#include "core/autograd/operators.h"

namespace psd {

std::vector<OperatorSpec> BuiltinOperators();

}  // namespace psd
