#pragma once

// Runs a step over many rows in batches that fit the nearest cache.

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/base/parallel_for.h"
#include "core/optim/functional/row_optimizer.h"
#include "kernels/rows/rows.h"

namespace psd::optim {

// Called with the ids of some rows, each once, and these rows as the step has made them, packed.
using PublishRows = absl::FunctionRef<void(absl::Span<const int64_t> ids, const std::byte* next)>;

// Steps the rows of `groups`, batch after batch. The caller fills `arrays` except for `next` and
// the fields that say which rows these are (ids, begins, count, ahead, positions). After each batch
// `publish` is called. Many rows are divided among this thread and `helpers`, which then call
// `publish` at the same time. The result does not depend on the number of helpers.
void StepRows(const RowOptimizer& function, const kernels::RowGroups& groups,
              const RowArrays& arrays, const Helpers& helpers, PublishRows publish);

}  // namespace psd::optim
