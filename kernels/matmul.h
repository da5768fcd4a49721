#pragma once

// Products of dense row-major matrices (docs/decisions/0001-matrix-products.md).
//
// Everything runs on the calling thread, because psd's executors decide about threads. Thread-safe:
// no state. NaN and infinity propagate.

#include <cstdint>

namespace psd::kernels {

// An input matrix, row-major in memory with `stride` elements from one row to the next. If
// `transposed`, it stands for the transpose of the matrix in memory.
template <typename T>
struct MatrixView {
  const T* data;
  int64_t stride;
  bool transposed;
};

// Computes c = a * b + beta * c, where a is m x k and b is k x n (both after transposition), and c
// is m x n, row-major and dense. If beta is 0, the old contents of c are not read. Requires: sizes
// are not negative; strides are at least max(1, the length of a row in memory); c overlaps neither
// a nor b.
void Gemm(int64_t m, int64_t n, int64_t k, MatrixView<float> a, MatrixView<float> b, float beta,
          float* c);
void Gemm(int64_t m, int64_t n, int64_t k, MatrixView<double> a, MatrixView<double> b, double beta,
          double* c);

}  // namespace psd::kernels
