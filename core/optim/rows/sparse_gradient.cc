#include "core/optim/rows/sparse_gradient.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "kernels/optim/norm.h"

namespace psd::optim {
namespace {

template <typename T>
double SumOfSquaresAs(const SparseGradient& gradient) {
  const auto width = static_cast<size_t>(gradient.entries.shape()[1]);
  std::vector<T> sums(gradient.groups.ids.size() * width);
  kernels::SumRows(gradient.groups, gradient.entries.values().data<T>(), width, width, sums.data());
  return kernels::SumOfSquares(sums.data(), sums.size());
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SparseGradient>> GroupEntries(
    absl::Span<const SparseTensor> parts) {
  auto gradient = std::make_shared<SparseGradient>();
  PSD_ASSIGN_OR_RETURN(gradient->entries, ConcatSparse(parts));
  const SparseTensor& entries = gradient->entries;
  if (entries.shape().rank() != 2 || entries.sparse_axes() != 1 ||
      (entries.dtype() != DType::kF32 && entries.dtype() != DType::kF64)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", entries.ToString(), " is no gradient of rows of f32 or f64"));
  }
  kernels::GroupRows(entries.indices().data<int64_t>(), static_cast<size_t>(entries.NumEntries()),
                     &gradient->groups);
  return std::shared_ptr<const SparseGradient>(std::move(gradient));
}

double SumOfSquares(const SparseGradient& gradient) {
  return gradient.entries.dtype() == DType::kF32 ? SumOfSquaresAs<float>(gradient)
                                                 : SumOfSquaresAs<double>(gradient);
}

}  // namespace psd::optim
