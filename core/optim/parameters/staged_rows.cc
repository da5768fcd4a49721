#include "core/optim/parameters/staged_rows.h"

#include <utility>

#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/tensor/ops/gather.h"

namespace psd::optim {

absl::StatusOr<StagedRows::Staged> StagedRows::ToHost(absl::StatusOr<Tensor> gathered) {
  Staged staged;
  PSD_ASSIGN_OR_RETURN(staged.there, std::move(gathered));
  PSD_ASSIGN_OR_RETURN(staged.here, staged.there.ToHost());
  return staged;
}

absl::StatusOr<StagedRows> StagedRows::Read(const store::Rows& table,
                                            const std::vector<StateBlock>& state,
                                            absl::Span<const int64_t> ids) {
  StagedRows staged;
  const Tensor numbers = Tensor::Of<int64_t>(Shape{static_cast<int64_t>(ids.size())}, ids);
  PSD_ASSIGN_OR_RETURN(staged.ids_, numbers.Clone(&table.device()->memory()));
  PSD_ASSIGN_OR_RETURN(staged.rows_, ToHost(table.Read(staged.ids_)));
  for (const StateBlock& each : state) {
    const size_t elements = each.block->size() / ItemSize(each.slot.dtype);
    const Shape shape{table.NumRows(), static_cast<int64_t>(elements) / table.NumRows()};
    Array array;
    PSD_ASSIGN_OR_RETURN(array.all, Tensor::FromBuffer(shape, each.slot.dtype, Buffer(each.block)));
    PSD_ASSIGN_OR_RETURN(array.rows, ToHost(ops::GatherRows(array.all, staged.ids_)));
    staged.state_.push_back(array.rows.here.mutable_raw_data());
    staged.arrays_.push_back(std::move(array));
  }
  return staged;
}

absl::Status StagedRows::Write(store::Changing changing, store::Rows& table,
                               const std::byte* next) {
  Device& device = *table.device();
  const auto send = [&device](Staged& rows, const std::byte* elements) {
    // CopyBytes, because `elements` may be null if there are no rows.
    return CopyBytes(&device, rows.there.mutable_address(), nullptr, elements,
                     rows.there.NumBytes());
  };
  PSD_RETURN_IF_ERROR(send(rows_, next));
  for (Array& array : arrays_) PSD_RETURN_IF_ERROR(send(array.rows, array.rows.here.raw_data()));
  for (Array& array : arrays_) ops::ScatterRowsThere(array.all, ids_, array.rows.there);
  table.WriteThere(changing, ids_, rows_.there);
  return device.Synchronize();
}

}  // namespace psd::optim
