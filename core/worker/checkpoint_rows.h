#pragma once

// Rows, and how they are stepped: what copies into an owner and out of it share.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/store/rows.h"
#include "core/store/store.h"

namespace psd::worker {

// Some rows of a table.
struct Rows {
  std::shared_ptr<store::Rows> table;  // null: no rows, but the whole of a value
  int64_t first = 0;
  int64_t count = 0;

  // The part of an array with so many bytes for all rows.
  size_t Offset(size_t bytes) const { return bytes / NumRows() * static_cast<size_t>(first); }
  size_t NumRows() const { return table == nullptr ? 1 : static_cast<size_t>(table->NumRows()); }
};

// `count` rows of `entry` from `first`; none of both for what has no rows.
// Errors: INVALID_ARGUMENT when it has them not.
absl::StatusOr<Rows> RowsOf(const store::Entry& entry, int64_t first, int64_t count);

// How `optimizer` steps `entry`. Errors: NOT_FOUND.
absl::StatusOr<optim::SteppedParameter*> FindStepped(const optim::OwnerOptimizer& optimizer,
                                                     const store::Entry& entry);

}  // namespace psd::worker
