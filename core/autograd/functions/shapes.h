#pragma once

// Functions that change the shape or dtype of a variable: those of core/tensor/ops/shape_ops.h and
// cast.h, with history. Errors travel in the result (variable.h).

#include <cstdint>

#include "absl/types/span.h"
#include "core/autograd/variable.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace psd {

// One extent may be -1; it is computed from the others.
Variable Reshape(const Variable& x, absl::Span<const int64_t> extents);
Variable Transpose(const Variable& x, int64_t axis0, int64_t axis1);
// Returns the indices [begin, end) along `axis`.
Variable Slice(const Variable& x, int64_t axis, int64_t begin, int64_t end);
Variable Concat(absl::Span<const Variable> parts, int64_t axis);
Variable Concat(absl::Span<const Variable* const> parts, int64_t axis);
Variable BroadcastTo(const Variable& x, const Shape& shape);

// The gradient is cast back to the dtype of `x`. A result that is neither f32 nor f64 has no
// history.
Variable Cast(const Variable& x, DType dtype);

}  // namespace psd
