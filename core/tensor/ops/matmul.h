#pragma once

// Matrix products. Pure functions on f32 and f64; thread-safe; each runs on its caller's thread
// alone. Transposed views cost no copy.
// Errors: INVALID_ARGUMENT naming both tensors; RESOURCE_EXHAUSTED.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// a[M, K] * b[K, N], each taken transposed first if so asked.
absl::StatusOr<Tensor> Matmul(const Tensor& a, const Tensor& b, bool transpose_a = false,
                              bool transpose_b = false);

// x[B, I] * transposed w[O, I] + b[O]. `b` may be undefined: nothing is added.
absl::StatusOr<Tensor> Linear(const Tensor& x, const Tensor& w, const Tensor& b);

}  // namespace psd::ops
