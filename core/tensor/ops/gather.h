#pragma once

// Rows of a table by their numbers. Pure functions; thread-safe.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Errors: INVALID_ARGUMENT unless `ids` is i64 on the cpu and every id in [0, rows): names the
// first that is not.
absl::Status CheckRowIds(const Tensor& ids, int64_t rows);

// [the extents of ids, the extents of a row]: rows `ids` of `table`, of any dtype and at least one
// axis. A copy.
// Errors: those of CheckRowIds; INVALID_ARGUMENT for a scalar table; RESOURCE_EXHAUSTED.
absl::StatusOr<Tensor> GatherRows(const Tensor& table, const Tensor& ids);

}  // namespace psd::ops
