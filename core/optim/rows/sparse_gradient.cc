#include "core/optim/rows/sparse_gradient.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "kernels/optim/norm.h"

namespace psd::optim {
namespace {

kernels::RowGroups GroupsOf(const SparseTensor& entries) {
  kernels::RowGroups groups;
  kernels::GroupRows(entries.indices().data<int64_t>(), static_cast<size_t>(entries.NumEntries()),
                     &groups);
  return groups;
}

template <typename T>
double SumOfSquaresAs(const SparseTensor& entries, const kernels::RowGroups& groups) {
  const auto width = static_cast<size_t>(entries.shape()[1]);
  std::vector<T> sums(groups.ids.size() * width);
  kernels::SumRows(groups, entries.values().data<T>(), width, width, sums.data());
  return kernels::SumOfSquares(sums.data(), sums.size());
}

absl::StatusOr<SparseTensor> Join(absl::Span<const SparseTensor> parts) {
  PSD_ASSIGN_OR_RETURN(SparseTensor entries, ConcatSparse(parts));
  if (entries.shape().rank() == 2 && entries.sparse_axes() == 1 &&
      (entries.dtype() == DType::kF32 || entries.dtype() == DType::kF64)) {
    return entries;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a ", entries.ToString(), " is no gradient of rows of f32 or f64"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SparseGradient>> JoinEntries(
    absl::Span<const SparseTensor> parts) {
  auto gradient = std::make_shared<SparseGradient>();
  PSD_ASSIGN_OR_RETURN(gradient->entries, Join(parts));
  return std::shared_ptr<const SparseGradient>(std::move(gradient));
}

absl::StatusOr<std::shared_ptr<const SparseGradient>> GroupEntries(
    absl::Span<const SparseTensor> parts) {
  auto gradient = std::make_shared<SparseGradient>();
  PSD_ASSIGN_OR_RETURN(gradient->entries, Join(parts));
  gradient->groups = GroupsOf(gradient->entries);
  return std::shared_ptr<const SparseGradient>(std::move(gradient));
}

double SumOfSquares(const SparseGradient& gradient) {
  const SparseTensor& entries = gradient.entries;
  const auto sum = [&entries](const kernels::RowGroups& groups) {
    return entries.dtype() == DType::kF32 ? SumOfSquaresAs<float>(entries, groups)
                                          : SumOfSquaresAs<double>(entries, groups);
  };
  return gradient.groups.has_value() ? sum(*gradient.groups) : sum(GroupsOf(entries));
}

}  // namespace psd::optim
