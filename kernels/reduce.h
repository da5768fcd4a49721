#pragma once

// Sums and maxima over dense rows.
//
// Floating-point sums are taken in blocks whose sums are then added (several accumulators in each),
// so that the error grows far slower than the number of elements. The order depends only on the
// sizes and the instruction set. Thread-safe: no state. No alignment is required.

#include <cstddef>
#include <cstdint>

namespace psd::kernels {

// The sum of `count` numbers; 0 for none. Integers wrap around.
float Sum(const float* x, size_t count);
double Sum(const double* x, size_t count);
int32_t Sum(const int32_t* x, size_t count);
int64_t Sum(const int64_t* x, size_t count);

// out[c] = the sum over r of x[r * cols + c].
void SumColumns(const float* x, size_t rows, size_t cols, float* out);
void SumColumns(const double* x, size_t rows, size_t cols, double* out);
void SumColumns(const int32_t* x, size_t rows, size_t cols, int32_t* out);
void SumColumns(const int64_t* x, size_t rows, size_t cols, int64_t* out);

// The index of the first maximum among x[0], x[step], …; a NaN counts as larger than any number.
// Requires: count > 0.
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
