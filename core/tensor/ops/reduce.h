#pragma once

// Sums, means and maxima. Pure functions; thread-safe. Results are contiguous.
//
// A negative axis counts from the end. The reduced axis is dropped from the result or, if
// `keepdim`, kept with extent 1.
// Errors of all functions: INVALID_ARGUMENT naming tensor, axis and remedy; RESOURCE_EXHAUSTED.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Takes f32, f64, i32 and i64 (which wraps around); the result has the same dtype. The sum of no
// elements is 0.
absl::StatusOr<Tensor> Sum(const Tensor& x);
absl::StatusOr<Tensor> Sum(const Tensor& x, int64_t axis, bool keepdim = false);

// Takes f32 and f64. The mean of no elements is NaN.
absl::StatusOr<Tensor> Mean(const Tensor& x);
absl::StatusOr<Tensor> Mean(const Tensor& x, int64_t axis, bool keepdim = false);

// Max returns the largest elements along `axis`, ArgMax the index of the first of them (i64). NaN
// counts as the largest. Takes f32, f64, i32 and i64. An axis of extent 0 is INVALID_ARGUMENT.
absl::StatusOr<Tensor> Max(const Tensor& x, int64_t axis, bool keepdim = false);
absl::StatusOr<Tensor> ArgMax(const Tensor& x, int64_t axis, bool keepdim = false);

// Computes the gradient of a broadcast: sums `x` over the axes along which BroadcastTo(…,
// x.shape()) repeats a tensor of `shape`. The result has that shape.
absl::StatusOr<Tensor> SumTo(const Tensor& x, const Shape& shape);

}  // namespace psd::ops
