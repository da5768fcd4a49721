#pragma once

// Helpers for copying values into an owner and out of it: a range of rows, and the state of a
// value.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/store/rows.h"
#include "core/store/store.h"

namespace psd::services {

// A range of rows of a table, or the whole of a value without rows.
struct Rows {
  std::shared_ptr<store::Rows> table;  // null if the value has no rows; then all of it is meant
  int64_t first = 0;
  int64_t count = 0;

  // The offset of the first row in an array that has `bytes` bytes for all rows of the table.
  size_t Offset(size_t bytes) const { return bytes / NumRows() * static_cast<size_t>(first); }
  size_t NumRows() const { return table == nullptr ? 1 : static_cast<size_t>(table->NumRows()); }
};

// Returns `count` rows of `entry` from row `first` on. Both must be 0 for a value without rows.
// Errors: INVALID_ARGUMENT if the value has fewer than first + count rows.
absl::StatusOr<Rows> RowsOf(const store::Entry& entry, int64_t first, int64_t count);

// Returns the state that `optimizer` keeps for `entry`.
// Errors: NOT_FOUND if `entry` is not one of its parameters.
absl::StatusOr<optim::SteppedParameter*> FindStepped(const optim::OwnerOptimizer& optimizer,
                                                     const store::Entry& entry);

}  // namespace psd::services
