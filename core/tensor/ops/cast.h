#pragma once

// Conversion between dtypes. Pure; thread-safe.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Returns `x` with each element converted to `dtype`, by the rules of kernels/convert.h. The result
// is contiguous. If `x` has that dtype and is contiguous, the result is `x` itself.
// Errors: INVALID_ARGUMENT for an undefined tensor; RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> Cast(const Tensor& x, DType dtype, Allocator* allocator = nullptr);

}  // namespace psd::ops
