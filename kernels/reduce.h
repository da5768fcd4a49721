#pragma once

// Sums and maxima over dense rows.
//
// Floating-point sums are computed in blocks, whose sums are then added, so that the rounding error
// grows far more slowly than the number of elements. The order of additions depends only on the
// sizes and the instruction set. Thread-safe: no state. No alignment is required.

#include <cstddef>
#include <cstdint>

namespace psd::kernels {

// Returns the sum of `count` numbers, 0 if count is 0. Integers wrap around.
float Sum(const float* x, size_t count);
double Sum(const double* x, size_t count);
int32_t Sum(const int32_t* x, size_t count);
int64_t Sum(const int64_t* x, size_t count);

// Sets out[c] to the sum over r of x[r * cols + c].
void SumColumns(const float* x, size_t rows, size_t cols, float* out);
void SumColumns(const double* x, size_t rows, size_t cols, double* out);
void SumColumns(const int32_t* x, size_t rows, size_t cols, int32_t* out);
void SumColumns(const int64_t* x, size_t rows, size_t cols, int64_t* out);

// Returns the i in [0, count) for which x[i * step] is largest; if there are several, the first. A
// NaN counts as larger than any number. Requires: count > 0.
template <typename T>
size_t ArgMax(const T* x, size_t count, size_t step) {
  size_t best = 0;
  for (size_t i = 1; i < count; ++i) {
    const T value = x[i * step];
    const T most = x[best * step];
    if (value > most || (value != value && most == most)) best = i;
  }
  return best;
}

}  // namespace psd::kernels
