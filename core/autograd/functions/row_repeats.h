#pragma once

// Removes repeated ids from a lookup of rows. Each row is fetched once, and the gradients of its
// repeats are added up before they are sent back, so less data travels both ways.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"
#include "kernels/rows/rows.h"

namespace psd {

// Records which ids of a lookup are the same. Immutable; thread-safe.
class RowRepeats {
 public:
  // Returns null if removing repeats gains too little: there are fewer than kMinRepeatedIds ids, or
  // fewer than about an eighth of them are repeats. Also returns null for ids that cannot be valid,
  // so that the owner of the table reports the error with these ids. Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::shared_ptr<const RowRepeats>> Find(const Tensor& ids);

  // The ids without repeats, ascending.
  const Tensor& distinct() const { return distinct_; }
  // For each id its index in distinct(), in the shape of the ids.
  const Tensor& places() const { return places_; }
  const kernels::RowGroups& groups() const { return groups_; }

 private:
  RowRepeats() = default;

  Tensor distinct_, places_;
  kernels::RowGroups groups_;
};

inline constexpr int64_t kMinRepeatedIds = 256;

// Returns the rows of all ids, [the extents of the ids, width], from `rows`, [distinct, width],
// which are the rows of distinct(). The gradient of a row is the sum over its repeats, in their
// order. Rows that require grad must be f32 or f64.
Variable RepeatRows(const Variable& rows, std::shared_ptr<const RowRepeats> repeats);

}  // namespace psd
