#pragma once

// Rows of a table by their ids. Pure functions; thread-safe.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Checks ids of rows. Errors: INVALID_ARGUMENT unless `ids` is i64 on the cpu and every id is in
// [0, rows); the message names the first that is not.
absl::Status CheckRowIds(const Tensor& ids, int64_t rows);

// Returns a copy of the rows `ids` of `table`, in the order of the ids. The shape is the extents of
// ids followed by the extents of a row. `table` has any dtype and at least one axis.
// Errors: those of CheckRowIds; INVALID_ARGUMENT for a scalar table; RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> GatherRows(const Tensor& table, const Tensor& ids);

}  // namespace psd::ops
