#pragma once

// Sums and means: core/tensor/ops/reduce.h with history. Errors travel in the result (variable.h).

#include <cstdint>

#include "core/autograd/variable.h"

namespace psd {

// These reduce over all elements. The result is a scalar.
Variable Sum(const Variable& x);
Variable Mean(const Variable& x);

// These reduce along one axis, which counts from the end if negative.
Variable Sum(const Variable& x, int64_t axis, bool keepdim = false);
Variable Mean(const Variable& x, int64_t axis, bool keepdim = false);

}  // namespace psd
