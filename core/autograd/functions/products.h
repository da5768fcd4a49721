#pragma once

// Matrix products: core/tensor/ops/matmul.h with history. Errors travel in the result
// (variable.h).

#include "core/autograd/variable.h"

namespace psd {

// a[M, K] * b[K, N].
Variable Matmul(const Variable& a, const Variable& b);

// x[B, I] * transposed w[O, I], and + b[O].
Variable Linear(const Variable& x, const Variable& w);
Variable Linear(const Variable& x, const Variable& w, const Variable& b);

}  // namespace psd
