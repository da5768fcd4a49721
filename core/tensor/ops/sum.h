#pragma once

// Sums of gradients.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Returns a + b. Both have the same shape and the same floating-point dtype. f16 and bf16 are added
// in f32, and the sum is rounded to nearest even. A pure function; thread-safe.
// Errors: INVALID_ARGUMENT if shapes or dtypes differ; RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> AddGradients(const Tensor& a, const Tensor& b);

}  // namespace psd::ops
