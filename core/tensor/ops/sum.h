#pragma once

// Sums of gradients.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Returns sum + gradient, to which more gradients may be added. Both have the same shape; `sum` has
// the dtype of `gradient` or is an earlier result. If `gradient` is f16 or bf16, the result is f32,
// so that many small gradients are not lost one by one; Cast rounds it when all are added. Adds in
// place if `own` is set, which requires that `sum` is contiguous and that nobody else has a handle
// to its elements. The result is on the device of `sum`; a gradient on another one is copied there.
// Thread-safe. Errors: INVALID_ARGUMENT if shapes or dtypes differ;
// RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> AddToSum(Tensor sum, const Tensor& gradient, bool own = false);

}  // namespace psd::ops
