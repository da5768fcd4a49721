#include "core/optim/rows/row_batches.h"

#include <algorithm>

namespace psd::optim {
namespace {

// The size of a batch's new rows. These rows, and the rows that they replace, should still be in
// the nearest cache when they are published.
constexpr size_t kBatchBytes = size_t{4} << 10;

}  // namespace

RowBatches::RowBatches(size_t row_bytes)
    : row_bytes_(row_bytes),
      rows_(std::max<size_t>(1, kBatchBytes / std::max<size_t>(1, row_bytes))) {}

void RowBatches::Step(
    const RowOptimizer& function, const kernels::RowGroups& groups, RowArrays arrays,
    absl::FunctionRef<void(absl::Span<const int64_t> ids, const std::byte* next)> publish) {
  next_.resize(rows_ * row_bytes_);
  arrays.next = next_.data();
  arrays.positions = groups.positions.data();
  for (size_t first = 0; first < groups.ids.size(); first += rows_) {
    const size_t left = groups.ids.size() - first;
    arrays.ids = groups.ids.data() + first;
    arrays.begins = groups.begins.data() + first;
    arrays.count = std::min(rows_, left);
    arrays.ahead = left - arrays.count;
    function.Apply(arrays);
    publish({arrays.ids, arrays.count}, next_.data());
  }
}

}  // namespace psd::optim
