#include "core/optim/parameters/staged_rows.h"

#include <utility>

#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/tensor/ops/gather.h"

namespace psd::optim {
namespace {

// Returns the rows `ids` of `table`, which is on a device, in memory of the host that nobody
// shares.
absl::StatusOr<Tensor> RowsHere(const Tensor& table, const Tensor& ids) {
  PSD_ASSIGN_OR_RETURN(const Tensor rows, ops::GatherRows(table, ids));
  return rows.ToHost();
}

}  // namespace

absl::StatusOr<StagedRows> StagedRows::Read(const store::Rows& table,
                                            const std::vector<StateBlock>& state,
                                            absl::Span<const int64_t> ids) {
  StagedRows staged;
  staged.ids_ = Tensor::Of<int64_t>(Shape{static_cast<int64_t>(ids.size())}, ids);
  PSD_ASSIGN_OR_RETURN(const Tensor rows, table.Read(staged.ids_));
  PSD_ASSIGN_OR_RETURN(staged.rows_, rows.ToHost());
  for (const StateBlock& each : state) {
    const size_t elements = each.block->size() / ItemSize(each.slot.dtype);
    const Shape shape{table.NumRows(), static_cast<int64_t>(elements) / table.NumRows()};
    Array array;
    PSD_ASSIGN_OR_RETURN(array.there,
                         Tensor::FromBuffer(shape, each.slot.dtype, Buffer(each.block)));
    PSD_ASSIGN_OR_RETURN(array.here, RowsHere(array.there, staged.ids_));
    staged.state_.push_back(array.here.mutable_raw_data());
    staged.arrays_.push_back(std::move(array));
  }
  return staged;
}

absl::Status StagedRows::WriteState() {
  for (Array& array : arrays_) PSD_RETURN_IF_ERROR(ops::ScatterRows(array.there, ids_, array.here));
  return absl::OkStatus();
}

}  // namespace psd::optim
