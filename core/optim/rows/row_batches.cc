#include "core/optim/rows/row_batches.h"

#include <algorithm>
#include <vector>

#include "core/tensor/dtype.h"

namespace psd::optim {
namespace {

// The size of a batch's new rows. These rows, and the rows that they replace, should still be in
// the nearest cache when they are published.
constexpr size_t kBatchBytes = size_t{4} << 10;
// The size of the new rows that one thread steps at a time. To find, read and write them takes
// several times as long as to wake another thread.
constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

void StepRows(const RowOptimizer& function, const kernels::RowGroups& groups,
              const RowArrays& arrays, const Helpers& helpers, PublishRows publish) {
  const size_t row_bytes = std::max<size_t>(1, arrays.width * ItemSize(arrays.dtype));
  const size_t of_batch = std::max<size_t>(1, kBatchBytes / row_bytes);
  const size_t of_piece = std::max<size_t>(1, kPieceBytes / row_bytes);
  const size_t all = groups.ids.size();
  const auto step_piece = [&](size_t piece) {
    const size_t end = std::min(all, (piece + 1) * of_piece);
    std::vector<std::byte> next(of_batch * row_bytes);
    RowArrays batch = arrays;
    batch.next = next.data();
    batch.positions = groups.positions.data();
    for (size_t first = piece * of_piece; first < end; first += of_batch) {
      batch.ids = groups.ids.data() + first;
      batch.begins = groups.begins.data() + first;
      batch.count = std::min(of_batch, end - first);
      batch.ahead = end - first - batch.count;
      function.Apply(batch);
      publish({batch.ids, batch.count}, next.data());
    }
  };
  ParallelFor(helpers, (all + of_piece - 1) / of_piece, step_piece);
}

}  // namespace psd::optim
