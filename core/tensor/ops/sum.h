#pragma once

// Sums of gradients.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// a + b, of one shape and one floating dtype. f16 and bf16 are added in f32, and the sum is rounded
// to nearest even. A pure function; thread-safe.
// Errors: INVALID_ARGUMENT for tensors that do not fit each other; RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> AddGradients(const Tensor& a, const Tensor& b);

}  // namespace psd::ops
