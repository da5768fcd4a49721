#pragma once

// Rows of a table by their ids. Pure functions; thread-safe.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Checks ids of rows, which may be on any device. Errors: INVALID_ARGUMENT unless `ids` is i64 and
// every id is in [0, rows); the message names the first that is not.
absl::Status CheckRowIds(const Tensor& ids, int64_t rows);

// Returns a copy of the rows `ids` of `table`, in the order of the ids. The shape is the extents of
// ids followed by the extents of a row. `table` has any dtype and at least one axis.
// `ids` may be on the host or on the table's device.
// Errors: those of CheckRowIds; INVALID_ARGUMENT for a scalar table; UNIMPLEMENTED naming the
// device if it has no such kernel; RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> GatherRows(const Tensor& table, const Tensor& ids);

// Replaces the rows `ids` of `table`, no two of which are equal, by `rows`, which has one row for
// each id. The table's device makes the copies; `ids` and `rows` may be on the host. Requires:
// nobody else has a handle to the elements of `table`, which is contiguous and has at least one
// axis. Errors: those of CheckRowIds; INVALID_ARGUMENT if `rows` has another dtype or size;
// UNIMPLEMENTED naming the device if it has no such kernel; RESOURCE_EXHAUSTED.
absl::Status ScatterRows(Tensor& table, const Tensor& ids, const Tensor& rows);

}  // namespace psd::ops
