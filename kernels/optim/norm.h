#pragma once

// Sums of squares of gradients: for clipping by norm and for noticing overflow.

#include <cstddef>

#include "kernels/convert.h"

namespace psd::kernels {

// The sum of x[i]^2 over `size` elements, accumulated in double; 0 for none. x may start anywhere
// its type may. For 16-bit and 32-bit elements the result is finite if and only if all elements
// are; for double it may also be infinite because the square or the sum overflows. NaN if an
// element is NaN. The order of summation depends only on the size and the instruction set.
// Thread-safe: no state.
double SumOfSquares(const float* x, size_t size);
double SumOfSquares(const double* x, size_t size);
double SumOfSquares(const Half* x, size_t size);
double SumOfSquares(const BFloat16* x, size_t size);

}  // namespace psd::kernels
