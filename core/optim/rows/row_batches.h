#pragma once

// A step over many rows, a cache's worth at a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/optim/functional/row_optimizer.h"
#include "kernels/rows/rows.h"

namespace psd::optim {

// New rows of one batch; reused from step to step.
class RowBatches {
 public:
  explicit RowBatches(size_t row_bytes);

  // Steps the rows of `groups`. `arrays` holds all but ids, positions and `next`. `publish` gets
  // the new rows of each batch, packed.
  void Step(const RowOptimizer& function, const kernels::RowGroups& groups, RowArrays arrays,
            absl::FunctionRef<void(absl::Span<const int64_t> ids, const std::byte* next)> publish);

 private:
  const size_t row_bytes_;
  const size_t rows_;            // of one batch
  std::vector<std::byte> next_;  // empty until the first step
};

}  // namespace psd::optim
