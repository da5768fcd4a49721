#pragma once

// Rows that a lookup wants several times, fetched once: less to carry there, and their gradients
// are added up before they are carried back.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"
#include "kernels/rows/rows.h"

namespace psd {

// Which of some ids are the same. Immutable.
class RowRepeats {
 public:
  // Null where nothing is gained: fewer than kMinRepeatedIds ids, or hardly any repeated; and for
  // ids that no table has, so that its owner can say which.
  static absl::StatusOr<std::shared_ptr<const RowRepeats>> Find(const Tensor& ids);

  // Each id once, ascending: [distinct].
  const Tensor& distinct() const { return distinct_; }
  // Of each id, where distinct() has it.
  const Tensor& places() const { return places_; }
  const kernels::RowGroups& groups() const { return groups_; }

 private:
  RowRepeats() = default;

  Tensor distinct_, places_;
  kernels::RowGroups groups_;
};

inline constexpr int64_t kMinRepeatedIds = 256;

// [the extents of the ids, width] of `rows`, [distinct, width], the rows of distinct(). The
// gradient of a row is the sum over its repeats, in their order. Rows are f32 or f64.
Variable RepeatRows(const Variable& rows, std::shared_ptr<const RowRepeats> repeats);

}  // namespace psd
