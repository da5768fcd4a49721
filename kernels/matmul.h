#pragma once

// Products of dense row-major matrices (docs/decisions/0001-matrix-products.md).
//
// Runs on the calling thread alone: psd's own executors decide about threads. Thread-safe: no
// state. NaN and infinity pass through.

#include <cstdint>

namespace psd::kernels {

// A matrix as it lies in memory: row-major, `stride` elements from one row to the next; taken
// transposed if so marked.
template <typename T>
struct MatrixView {
  const T* data;
  int64_t stride;
  bool transposed;
};

// c = a * b + beta * c, with a of m x k, b of k x n (after their transposition), c of m x n and
// dense. With beta 0 the old contents of c do not matter.
// Requires: sizes not negative; strides >= max(1, the length of a row in memory); c overlaps
// neither a nor b.
void Gemm(int64_t m, int64_t n, int64_t k, MatrixView<float> a, MatrixView<float> b, float beta,
          float* c);
void Gemm(int64_t m, int64_t n, int64_t k, MatrixView<double> a, MatrixView<double> b, double beta,
          double* c);

}  // namespace psd::kernels
