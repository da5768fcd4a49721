#pragma once

// Gradients of some rows of a table, joined and grouped by row for a step.

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/sparse_tensor.h"
#include "kernels/rows/rows.h"

namespace psd::optim {

// Immutable once made.
struct SparseGradient {
  SparseTensor entries;  // one sparse axis, the rows
  // Which entries belong to which row. Nothing if they are not grouped, because a device will do
  // that.
  std::optional<kernels::RowGroups> groups;
};

// Returns the sum of `parts` as one gradient, not grouped. Each part is f32 or f64, has two axes,
// and only the first of them is sparse.
// Errors: INVALID_ARGUMENT if there is no part, a part is not such a tensor, or parts differ in
// shape or dtype; RESOURCE_EXHAUSTED.
absl::StatusOr<std::shared_ptr<const SparseGradient>> JoinEntries(
    absl::Span<const SparseTensor> parts);
// The same, grouped.
absl::StatusOr<std::shared_ptr<const SparseGradient>> GroupEntries(
    absl::Span<const SparseTensor> parts);

// Returns the sum of the squares of all elements. Entries of the same row are added up before they
// are squared. The result is not finite if an element is not finite.
double SumOfSquares(const SparseGradient& gradient);

}  // namespace psd::optim
