#include "core/tensor/sparse_tensor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "kernels/rows/rows.h"

namespace psd {
namespace {

absl::Status CheckParts(const Shape& shape, const Tensor& indices, const Tensor& values) {
  const bool usable = indices.defined() && values.defined() && indices.OnHost() &&
                      values.OnHost() && indices.dtype() == DType::kI64 && indices.rank() == 2;
  if (!usable || indices.shape()[0] < 1 || indices.shape()[0] > shape.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the indices of a sparse tensor ", shape.ToString(),
                     " must be i64[sparse axes, entries] on the cpu, not ", indices.ToString()));
  }
  if (indices.shape()[1] > kMaxSparseEntries) {
    return absl::InvalidArgumentError(absl::StrCat("a sparse tensor of ", indices.shape()[1],
                                                   " entries; at most ", kMaxSparseEntries,
                                                   " fit: split it"));
  }
  Strides expected = {indices.shape()[1]};
  for (int axis = static_cast<int>(indices.shape()[0]); axis < shape.rank(); ++axis)
    expected.push_back(shape[axis]);
  PSD_ASSIGN_OR_RETURN(Shape want, Shape::Checked(expected));
  if (values.shape() == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the values of a sparse tensor ", shape.ToString(),
                                                 " with indices ", indices.ToString(), " must be ",
                                                 want.ToString(), ", not ", values.ToString()));
}

// Checks that all coordinates are in range. Requires: `indices` is contiguous.
absl::Status CheckIndices(const Shape& shape, const Tensor& indices) {
  const int64_t* index = indices.data<int64_t>();
  for (int axis = 0; axis < static_cast<int>(indices.shape()[0]); ++axis) {
    for (int64_t i = 0; i < indices.shape()[1]; ++i, ++index) {
      if (*index >= 0 && *index < shape[axis]) continue;
      return absl::InvalidArgumentError(absl::StrCat("entry ", i, " of a sparse tensor ",
                                                     shape.ToString(), " is at ", *index,
                                                     " along axis ", axis));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFloat(const SparseTensor& tensor) {
  if (tensor.dtype() == DType::kF32 || tensor.dtype() == DType::kF64) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the entries of a ", tensor.ToString(),
                                                 " cannot be added up: only f32 and f64 can"));
}

// Returns the number of elements of one entry.
size_t EntryWidth(const SparseTensor& tensor) {
  size_t width = 1;
  for (int axis = 1; axis < tensor.values().rank(); ++axis)
    width *= static_cast<size_t>(tensor.values().shape()[axis]);
  return width;
}

// Calls sum(width, in, out) with pointers to the elements, typed according to the dtype.
template <typename Sum>
void WithElements(const SparseTensor& tensor, Tensor& out, const Sum& sum) {
  const size_t width = EntryWidth(tensor);
  if (tensor.dtype() == DType::kF32) {
    sum(width, tensor.values().data<float>(), out.mutable_data<float>());
  } else {
    sum(width, tensor.values().data<double>(), out.mutable_data<double>());
  }
}

}  // namespace

absl::StatusOr<SparseTensor> SparseTensor::Create(const Shape& shape, const Tensor& indices,
                                                  const Tensor& values) {
  PSD_RETURN_IF_ERROR(CheckParts(shape, indices, values));
  PSD_ASSIGN_OR_RETURN(Tensor dense_indices, indices.Contiguous());
  PSD_ASSIGN_OR_RETURN(Tensor dense_values, values.Contiguous());
  PSD_RETURN_IF_ERROR(CheckIndices(shape, dense_indices));
  return SparseTensor(shape, std::move(dense_indices), std::move(dense_values));
}

std::vector<int64_t> SparseTensor::RowNumbers() const {
  const size_t entries = static_cast<size_t>(NumEntries());
  const int64_t* index = indices_.data<int64_t>();
  std::vector<int64_t> rows(entries);
  for (int axis = 0; axis < sparse_axes(); ++axis)
    for (size_t i = 0; i < entries; ++i, ++index) rows[i] = rows[i] * shape_[axis] + *index;
  return rows;
}

absl::StatusOr<SparseTensor> SparseTensor::Coalesced() const {
  PSD_RETURN_IF_ERROR(CheckFloat(*this));
  const std::vector<int64_t> rows = RowNumbers();
  kernels::RowGroups groups;
  kernels::GroupRows(rows.data(), rows.size(), &groups);
  const auto entries = static_cast<int64_t>(groups.ids.size());
  Strides extents(values_.shape().extents().begin(), values_.shape().extents().end());
  extents[0] = entries;
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(extents));
  PSD_ASSIGN_OR_RETURN(Tensor values, Tensor::Empty(shape, dtype()));
  WithElements(*this, values, [&](size_t width, const auto* in, auto* out) {
    kernels::SumRows(groups, in, width, width, out);
  });
  PSD_ASSIGN_OR_RETURN(Tensor indices, Tensor::Empty(Shape{sparse_axes(), entries}, DType::kI64));
  int64_t* index = indices.mutable_data<int64_t>();
  for (int axis = sparse_axes() - 1; axis >= 0; --axis) {
    for (int64_t i = 0; i < entries; ++i) {
      int64_t& rest = groups.ids[static_cast<size_t>(i)];
      index[axis * entries + i] = rest % shape_[axis];
      rest /= shape_[axis];
    }
  }
  return SparseTensor(shape_, std::move(indices), std::move(values));
}

absl::StatusOr<Tensor> SparseTensor::ToDense() const {
  PSD_RETURN_IF_ERROR(CheckFloat(*this));
  PSD_ASSIGN_OR_RETURN(Tensor dense, Tensor::Zeros(shape_, dtype()));
  const std::vector<int64_t> rows = RowNumbers();
  kernels::RowGroups groups;
  kernels::GroupRows(rows.data(), rows.size(), &groups);
  WithElements(*this, dense, [&](size_t width, const auto* in, auto* out) {
    kernels::AddRows(groups, in, width, out);
  });
  return dense;
}

std::string SparseTensor::ToString() const {
  return absl::StrCat("sparse ", DTypeName(dtype()), shape_.ToString(), " of ", NumEntries(),
                      " entries");
}

absl::StatusOr<SparseTensor> ConcatSparse(absl::Span<const SparseTensor> parts) {
  if (parts.empty())
    return WithRemedy(absl::InvalidArgumentError("no sparse tensors to add up"), "give one");
  const SparseTensor& first = parts[0];
  if (parts.size() == 1) return first;
  int64_t entries = 0;
  for (const SparseTensor& part : parts) {
    entries += part.NumEntries();
    if (part.shape() == first.shape() && part.dtype() == first.dtype() &&
        part.sparse_axes() == first.sparse_axes()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("a ", part.ToString(), " cannot be added to a ",
                                                   first.ToString(),
                                                   ": shape, dtype and sparse axes must agree"));
  }
  Strides extents(first.values().shape().extents().begin(), first.values().shape().extents().end());
  extents[0] = entries;
  PSD_ASSIGN_OR_RETURN(Shape shape, Shape::Checked(extents));
  PSD_ASSIGN_OR_RETURN(Tensor values, Tensor::Empty(shape, first.dtype()));
  PSD_ASSIGN_OR_RETURN(Tensor indices,
                       Tensor::Empty(Shape{first.sparse_axes(), entries}, DType::kI64));
  std::byte* to = values.mutable_raw_data();
  int64_t* index = indices.mutable_data<int64_t>();
  for (const SparseTensor& part : parts) {
    if (part.values().NumBytes() > 0)
      std::memcpy(to, part.values().raw_data(), part.values().NumBytes());
    to += part.values().NumBytes();
    const auto count = part.NumEntries();
    const int64_t* from = part.indices().data<int64_t>();
    for (int axis = 0; axis < first.sparse_axes(); ++axis)
      std::copy(from + axis * count, from + (axis + 1) * count, index + axis * entries);
    index += count;
  }
  return SparseTensor::Create(first.shape(), indices, values);
}

}  // namespace psd
