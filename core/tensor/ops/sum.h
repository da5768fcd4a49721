#pragma once

// Sums of gradients.

#include "absl/status/statusor.h"
#include "core/tensor/dtype.h"
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
// As AddToSum. If the device of `sum` has no room, the result is on the host: gradients that other
// processes share are not written, so their sum needs memory of its own. Then it waits for the
// device.
absl::StatusOr<Tensor> AddToSumWhereRoom(const Tensor& sum, const Tensor& gradient,
                                         bool own = false);
// Returns `sum` in `dtype`, on the host if the device of `sum` has no room. Errors:
// RESOURCE_EXHAUSTED; those of the device.
absl::StatusOr<Tensor> RoundSumWhereRoom(const Tensor& sum, DType dtype);

}  // namespace psd::ops
