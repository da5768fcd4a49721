#include "core/tensor/ops/gather.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/check.h"
#include "core/tensor/ops/kernels.h"

namespace psd::ops {
namespace {

// The size of one row; 0 for a table without rows.
size_t RowBytes(const Tensor& table) {
  return table.NumBytes() / static_cast<size_t>(std::max<int64_t>(1, table.shape()[0]));
}

}  // namespace

absl::Status CheckRowIds(const Tensor& ids, int64_t rows) {
  if (!ids.defined() || ids.dtype() != DType::kI64) {
    return absl::InvalidArgumentError(absl::StrCat("ids must be i64, not ", ids.ToString()));
  }
  PSD_ASSIGN_OR_RETURN(const Tensor here, ids.ToHost());
  PSD_ASSIGN_OR_RETURN(const Tensor dense, here.Contiguous());
  const int64_t* id = dense.data<int64_t>();
  for (int64_t i = 0; i < dense.NumElements(); ++i) {
    if (id[i] >= 0 && id[i] < rows) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "id ", id[i], " (number ", i, " of ", dense.NumElements(),
        ") is out of range: ", "the table has ", rows, " rows, with ids 0 to ", rows - 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> GatherRows(const Tensor& table, const Tensor& ids) {
  PSD_RETURN_IF_ERROR(CheckDefined(kGatherRows.name, table));
  if (table.rank() == 0) return absl::InvalidArgumentError("GatherRows: a scalar has no rows");
  PSD_RETURN_IF_ERROR(CheckRowIds(ids, table.shape()[0]));
  PSD_ASSIGN_OR_RETURN(GatherRowsKernel* const kernel, KernelFor(kGatherRows, table));
  PSD_ASSIGN_OR_RETURN(const Tensor from, table.Contiguous());
  PSD_ASSIGN_OR_RETURN(const Tensor numbers, CopyTo(table.device(), ids));
  Strides extents(ids.shape().extents().begin(), ids.shape().extents().end());
  size_t row_bytes = ItemSize(table.dtype());
  for (int axis = 1; axis < table.rank(); ++axis) {
    extents.push_back(table.shape()[axis]);
    row_bytes *= static_cast<size_t>(table.shape()[axis]);
  }
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(extents));
  PSD_ASSIGN_OR_RETURN(Tensor out, Tensor::EmptyBeside(table, shape, table.dtype()));
  if (row_bytes > 0 && numbers.NumElements() > 0) {
    kernel(StreamFor(from), from.address(), row_bytes,
           reinterpret_cast<const int64_t*>(numbers.address()),
           static_cast<size_t>(numbers.NumElements()), out.mutable_address());
  }
  return out;
}

absl::Status ScatterRows(Tensor& table, const Tensor& ids, const Tensor& rows) {
  PSD_RETURN_IF_ERROR(CheckDefined(kScatterRows.name, table));
  PSD_CHECK(table.rank() > 0 && table.IsContiguous(), "rows are scattered into a dense table");
  PSD_RETURN_IF_ERROR(CheckRowIds(ids, table.shape()[0]));
  const size_t count = static_cast<size_t>(ids.NumElements());
  if (rows.dtype() != table.dtype() || rows.NumBytes() != count * RowBytes(table)) {
    return absl::InvalidArgumentError(absl::StrCat("ScatterRows: ", rows.ToString(), " is not ",
                                                   count, " rows of ", table.ToString()));
  }
  PSD_ASSIGN_OR_RETURN(ScatterRowsKernel* const kernel, KernelFor(kScatterRows, table));
  PSD_ASSIGN_OR_RETURN(const Tensor numbers, CopyTo(table.device(), ids));
  PSD_ASSIGN_OR_RETURN(const Tensor packed, CopyTo(table.device(), rows));
  if (count == 0) return absl::OkStatus();
  kernel(StreamFor(table), table.mutable_address(), RowBytes(table),
         reinterpret_cast<const int64_t*>(numbers.address()), count, packed.address());
  return absl::OkStatus();
}

}  // namespace psd::ops
