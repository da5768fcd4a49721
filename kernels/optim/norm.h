#pragma once

// Sums of squares of gradients, for clipping by norm and for detecting overflow.

#include <cstddef>

#include "kernels/convert.h"

namespace psd::kernels {

// Returns the sum of x[i]^2 over `size` elements, accumulated in double; 0 if size is 0. The result
// is NaN if an element is NaN. For 16-bit and 32-bit elements the result is finite if and only if
// all elements are; for double it may also be infinite because a square or the sum overflows. x
// needs only the alignment of its type. The order of summation depends only on the size and the
// instruction set. Thread-safe: no state.
double SumOfSquares(const float* x, size_t size);
double SumOfSquares(const double* x, size_t size);
double SumOfSquares(const Half* x, size_t size);
double SumOfSquares(const BFloat16* x, size_t size);

}  // namespace psd::kernels
