#pragma once

// Matrix products: core/tensor/ops/matmul.h with history. Errors travel in the result
// (variable.h).

#include "core/autograd/variable.h"

namespace psd {

// Returns a * b, [M, N], where a is [M, K] and b is [K, N].
Variable Matmul(const Variable& a, const Variable& b);

// Returns x * transposed(w), plus b if it is given: [B, O], where x is [B, I], w is [O, I] and b is
// [O].
Variable Linear(const Variable& x, const Variable& w);
Variable Linear(const Variable& x, const Variable& w, const Variable& b);

}  // namespace psd
