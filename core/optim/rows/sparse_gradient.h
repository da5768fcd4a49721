#pragma once

// The gradient of some rows, ready for a step: which of its entries belong to which row.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/sparse_tensor.h"
#include "kernels/rows/rows.h"

namespace psd::optim {

// Immutable once made.
struct SparseGradient {
  SparseTensor entries;  // one sparse axis
  kernels::RowGroups groups;
};

// The sum of `parts`, of tensors of two axes of which the first is sparse.
// Errors: INVALID_ARGUMENT for none, or parts that differ; RESOURCE_EXHAUSTED.
absl::StatusOr<std::shared_ptr<const SparseGradient>> GroupEntries(
    absl::Span<const SparseTensor> parts);

// The sum of the squares of all elements of the rows, repeated rows added up first; not finite if
// one of them is not.
double SumOfSquares(const SparseGradient& gradient);

}  // namespace psd::optim
