#pragma once

// Runs a step over many rows in batches that fit the nearest cache.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/optim/functional/row_optimizer.h"
#include "kernels/rows/rows.h"

namespace psd::optim {

// Holds the buffer for the new rows of one batch, and reuses it in later steps. Thread-compatible.
class RowBatches {
 public:
  explicit RowBatches(size_t row_bytes);

  // Steps the rows of `groups`, batch after batch. The caller fills `arrays` except for `next` and
  // the fields that say which rows these are (ids, begins, count, ahead, positions). After each
  // batch `publish` is called with the ids of its rows and the new rows, packed.
  void Step(const RowOptimizer& function, const kernels::RowGroups& groups, RowArrays arrays,
            absl::FunctionRef<void(absl::Span<const int64_t> ids, const std::byte* next)> publish);

 private:
  const size_t row_bytes_;
  const size_t rows_;            // the most rows of one batch
  std::vector<std::byte> next_;  // empty until the first step
};

}  // namespace psd::optim
