#pragma once

// Sums, means and maxima. Pure functions; thread-safe. Results are contiguous.
//
// An axis counts from the end if negative. The reduced axis is left out of the result, or kept with
// extent 1 if `keepdim`.
// Errors of all: INVALID_ARGUMENT naming tensor, axis and remedy; RESOURCE_EXHAUSTED.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// f32, f64, i32, i64 (wrapping around), in their own dtype; 0 over nothing.
absl::StatusOr<Tensor> Sum(const Tensor& x);
absl::StatusOr<Tensor> Sum(const Tensor& x, int64_t axis, bool keepdim = false);

// f32, f64; NaN over nothing.
absl::StatusOr<Tensor> Mean(const Tensor& x);
absl::StatusOr<Tensor> Mean(const Tensor& x, int64_t axis, bool keepdim = false);

// The largest along `axis`, and its first index (i64). NaN counts as largest. The axis must not be
// empty. f32, f64, i32, i64.
absl::StatusOr<Tensor> Max(const Tensor& x, int64_t axis, bool keepdim = false);
absl::StatusOr<Tensor> ArgMax(const Tensor& x, int64_t axis, bool keepdim = false);

// The gradient of a broadcast: sums over what BroadcastTo(…, x.shape()) repeats of `shape`.
absl::StatusOr<Tensor> SumTo(const Tensor& x, const Shape& shape);

}  // namespace psd::ops
