#pragma once

// Other shapes of the same elements. Pure functions; thread-safe.
//
// Errors of all: INVALID_ARGUMENT naming shapes and remedy; RESOURCE_EXHAUSTED where they copy.

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// The same elements, row-major, as `extents`, one of which may be -1: whatever is left. A view if
// `x` is contiguous, else a copy.
absl::StatusOr<Tensor> Reshape(const Tensor& x, absl::Span<const int64_t> extents);

// A view with two axes exchanged.
absl::StatusOr<Tensor> Transpose(const Tensor& x, int64_t axis0, int64_t axis1);

// A view of the indices [begin, end) along `axis`. Requires 0 <= begin <= end <= extent.
absl::StatusOr<Tensor> Slice(const Tensor& x, int64_t axis, int64_t begin, int64_t end);

// One tensor behind the other along `axis`. At least one; all of one dtype and, but for `axis`, of
// one shape. A copy.
absl::StatusOr<Tensor> Concat(absl::Span<const Tensor> parts, int64_t axis,
                              Allocator* allocator = nullptr);

// The shape of that, checked.
absl::StatusOr<Shape> ConcatShape(absl::Span<const Shape> shapes, int64_t axis);

// A view in which axes of extent 1, and axes that `x` lacks in front, are repeated (stride 0).
absl::StatusOr<Tensor> BroadcastTo(const Tensor& x, const Shape& shape);

}  // namespace psd::ops
