#include "core/autograd/functions/row_repeats.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/gather.h"
#include "core/tensor/shape.h"

namespace psd {
namespace {

// The rows of a gradient, on the host. Each is contiguous, and `stride` is the number of elements
// from one row to the next; it is 0 if all are the same row.
struct GradientRows {
  Tensor elements;
  size_t stride = 0;
};

// Whether all rows are one row that was expanded, as in gradients of sums and means. Such a row
// need not be copied for every id.
bool IsOneRow(const Tensor& gradient) {
  for (int axis = 0; axis < gradient.rank() - 1; ++axis)
    if (gradient.shape()[axis] > 1 && gradient.strides()[axis] != 0) return false;
  return true;
}

absl::StatusOr<GradientRows> RowsOf(const Tensor& gradient) {
  const int last = gradient.rank() - 1;
  const int64_t width = gradient.shape()[last];
  GradientRows rows;
  if (gradient.NumElements() > 0 && IsOneRow(gradient)) {
    const Tensor row = gradient.View(Shape{width}, {gradient.strides()[last]}, 0);
    PSD_ASSIGN_OR_RETURN(rows.elements, CopyTo(nullptr, row));
  } else {
    PSD_ASSIGN_OR_RETURN(rows.elements, CopyTo(nullptr, gradient));
    rows.stride = static_cast<size_t>(width);
  }
  return rows;
}

// The sums are on the host, wherever the gradient is: they become a sparse tensor or a message.
absl::StatusOr<Tensor> SumRepeats(const RowRepeats& repeats, const Tensor& gradient) {
  PSD_ASSIGN_OR_RETURN(const GradientRows rows, RowsOf(gradient));
  const int64_t width = gradient.shape()[gradient.rank() - 1];
  PSD_ASSIGN_OR_RETURN(
      Tensor sums, Tensor::Empty(Shape{repeats.distinct().NumElements(), width}, gradient.dtype()));
  const auto sum = [&](const auto* from, auto* to) {
    kernels::SumRows(repeats.groups(), from, rows.stride, static_cast<size_t>(width), to);
  };
  if (gradient.dtype() == DType::kF32) {
    sum(rows.elements.data<float>(), sums.mutable_data<float>());
  } else {
    sum(rows.elements.data<double>(), sums.mutable_data<double>());
  }
  return sums;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RowRepeats>> RowRepeats::Find(const Tensor& ids) {
  const std::shared_ptr<const RowRepeats> none;
  if (!ids.defined() || ids.dtype() != DType::kI64 || !ids.OnHost() ||
      ids.NumElements() < kMinRepeatedIds)
    return none;
  PSD_ASSIGN_OR_RETURN(const Tensor dense, ids.Contiguous());
  const int64_t* id = dense.data<int64_t>();
  const auto count = static_cast<size_t>(dense.NumElements());
  if (std::any_of(id, id + count, [](int64_t each) { return each < 0; })) return none;
  std::shared_ptr<RowRepeats> found(new RowRepeats);
  kernels::GroupRows(id, count, &found->groups_);
  const std::vector<int64_t>& distinct = found->groups_.ids;
  if (distinct.size() > count / 8 * 7) return none;
  const Shape shape({static_cast<int64_t>(distinct.size())});
  PSD_ASSIGN_OR_RETURN(found->distinct_, Tensor::Empty(shape, DType::kI64));
  std::copy(distinct.begin(), distinct.end(), found->distinct_.mutable_data<int64_t>());
  PSD_ASSIGN_OR_RETURN(found->places_, Tensor::Empty(ids.shape(), DType::kI64));
  int64_t* places = found->places_.mutable_data<int64_t>();
  for (size_t k = 0; k < distinct.size(); ++k) {
    for (uint32_t i = found->groups_.begins[k]; i < found->groups_.begins[k + 1]; ++i)
      places[found->groups_.positions[i]] = static_cast<int64_t>(k);
  }
  return std::shared_ptr<const RowRepeats>(std::move(found));
}

Variable RepeatRows(const Variable& rows, std::shared_ptr<const RowRepeats> repeats) {
  if (const Variable* invalid = FirstInvalid({&rows})) return *invalid;
  const DType dtype = rows.tensor().dtype();
  const bool usable = rows.shape().rank() == 2 &&
                      rows.shape()[0] == repeats->distinct().NumElements() &&
                      (dtype == DType::kF32 || dtype == DType::kF64 || !rows.requires_grad());
  if (!usable) {
    return Variable::Invalid(absl::InvalidArgumentError(
        absl::StrCat("RepeatRows was given ", rows.tensor().ToString(), "; it must be f32 or f64[",
                     repeats->distinct().NumElements(), ", width]")));
  }
  return Record(
      "RepeatRows", {&rows}, ops::GatherRows(rows.tensor(), repeats->places()), Save(),
      [repeats](const GradientCall& call) { return call.Give(0, SumRepeats(*repeats, call.g)); });
}

}  // namespace psd
