#pragma once

// Functions that change shapes and keep the elements. Pure functions; thread-safe.
//
// A negative axis counts from the end.
// Errors of all functions: INVALID_ARGUMENT naming shapes and remedy; RESOURCE_EXHAUSTED where they
// copy.

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Returns the same elements, in row-major order, with the shape `extents`. One extent may be -1; it
// is computed from the others. The result is a view if `x` is contiguous, otherwise a copy.
absl::StatusOr<Tensor> Reshape(const Tensor& x, absl::Span<const int64_t> extents);

// Returns a view with two axes exchanged.
absl::StatusOr<Tensor> Transpose(const Tensor& x, int64_t axis0, int64_t axis1);

// Returns a view of the indices [begin, end) along `axis`, where 0 <= begin <= end <= extent must
// hold.
absl::StatusOr<Tensor> Slice(const Tensor& x, int64_t axis, int64_t begin, int64_t end);

// Returns a copy of the tensors `parts`, one behind the other along `axis`. There must be at least
// one part; all have the same dtype, and the same extents on all other axes.
absl::StatusOr<Tensor> Concat(absl::Span<const Tensor> parts, int64_t axis,
                              Allocator* allocator = nullptr);

// Returns the shape of Concat's result for parts of these shapes.
absl::StatusOr<Shape> ConcatShape(absl::Span<const Shape> shapes, int64_t axis);

// Returns a view of `shape`, in which axes of extent 1, and axes that `x` lacks in front, are
// repeated with stride 0.
absl::StatusOr<Tensor> BroadcastTo(const Tensor& x, const Shape& shape);

}  // namespace psd::ops
