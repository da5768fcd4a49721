#pragma once

// Conversion between dtypes, and comparisons for tests. Pure functions; thread-safe.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Returns `x` with each element converted to `dtype`, by the rules of kernels/convert.h. The result
// is contiguous. If `x` has that dtype and is contiguous, the result is `x` itself.
// Errors: INVALID_ARGUMENT for an undefined tensor; RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> Cast(const Tensor& x, DType dtype, Allocator* allocator = nullptr);

// Whether both have the same shape, the same dtype and the same bits in every element. Undefined
// tensors equal each other.
bool Equal(const Tensor& a, const Tensor& b);

// Whether both have the same shape and dtype, and |a - b| <= absolute + relative * |b| in every
// element. NaN is close to NaN, and an infinity to itself.
bool AllClose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8);

}  // namespace psd::ops
