#pragma once

// Matrix products. Pure functions on f32 and f64; thread-safe. Each runs only on the calling
// thread. Transposed views are not copied.
// Errors: INVALID_ARGUMENT naming both tensors; RESOURCE_EXHAUSTED.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Returns a * b, [M, N], where a is [M, K] and b is [K, N]. If a transposition is asked for, this
// is their shape after it.
absl::StatusOr<Tensor> Matmul(const Tensor& a, const Tensor& b, bool transpose_a = false,
                              bool transpose_b = false);

// Returns x * transposed(w) + b, [B, O], where x is [B, I], w is [O, I] and b is [O]. If `b` is
// undefined, nothing is added.
absl::StatusOr<Tensor> Linear(const Tensor& x, const Tensor& w, const Tensor& b);

}  // namespace psd::ops
