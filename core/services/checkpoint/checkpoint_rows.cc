#include "core/services/checkpoint/checkpoint_rows.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace psd::services {

absl::StatusOr<Rows> RowsOf(const store::Entry& entry, int64_t first, int64_t count) {
  Rows rows{store::AsRows(entry.value), first, count};
  if (rows.table == nullptr ? first == 0 && count == 0
                            : first >= 0 && count > 0 && count <= rows.table->NumRows() - first)
    return rows;
  return absl::InvalidArgumentError(absl::StrCat(entry.Label(), " is ", entry.KindName(),
                                                 ", and has no ", count, " rows from ", first));
}

absl::StatusOr<optim::SteppedParameter*> FindStepped(const optim::OwnerOptimizer& optimizer,
                                                     const store::Entry& entry) {
  const std::optional<size_t> index = optimizer.table().Find(entry.id);
  if (index.has_value()) return &optimizer.table()[*index];
  return absl::NotFoundError(
      absl::StrCat(entry.Label(), " is no parameter of ", optimizer.TypeName()));
}

}  // namespace psd::services
