#include "core/optim/parameters/dense_squares.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>

#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/tensor/dtype.h"
#include "kernels/convert.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/norm.h"

namespace psd::optim {
namespace {

// Gradients of one device and dtype.
struct Group {
  Device* device;
  DType dtype;
  std::vector<size_t> numbers;  // of the gradients
  std::shared_ptr<Block> sums;  // of the parts of all gradients; null if there are no elements
};

size_t PartsOf(const Tensor& gradient) {
  constexpr size_t kPart = kernels::kOptimPartElements;
  return (static_cast<size_t>(gradient.NumElements()) + kPart - 1) / kPart;
}

double SumHere(const Tensor& gradient) {
  const auto size = static_cast<size_t>(gradient.NumElements());
  const auto sum_as = [&](auto element) {
    return kernels::SumOfSquares(reinterpret_cast<const decltype(element)*>(gradient.raw_data()),
                                 size);
  };
  switch (gradient.dtype()) {
    case DType::kF64:
      return sum_as(double{});
    case DType::kF16:
      return sum_as(kernels::Half{});
    case DType::kBF16:
      return sum_as(kernels::BFloat16{});
    default:
      return sum_as(float{});
  }
}

// Adds the work of a group to the device.
absl::Status AddWork(absl::Span<const Tensor* const> gradients, Group& group) {
  PSD_ASSIGN_OR_RETURN(auto* const sum_squares, KernelOf(kSumSquares, *group.device));
  std::vector<kernels::OptimArrays> arrays(group.numbers.size());
  size_t parts = 0;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Tensor& gradient = *gradients[group.numbers[i]];
    arrays[i].gradient = gradient.address();
    arrays[i].size = static_cast<size_t>(gradient.NumElements());
    parts += PartsOf(gradient);
  }
  if (parts == 0) return absl::OkStatus();
  kernels::OptimBatch batch;
  batch.type = OptimTypeOf(group.dtype);
  batch.arrays = arrays.data();
  batch.count = arrays.size();
  PSD_ASSIGN_OR_RETURN(group.sums, group.device->memory().Allocate(parts * sizeof(double)));
  return sum_squares(CurrentStream(group.device), batch,
                     reinterpret_cast<double*>(group.sums->data()));
}

// Waits for the work of a group.
absl::Status TakeSums(absl::Span<const Tensor* const> gradients, const Group& group,
                      std::vector<double>& sums) {
  if (group.sums == nullptr) return absl::OkStatus();
  std::vector<double> parts(group.sums->size() / sizeof(double));
  PSD_RETURN_IF_ERROR(group.device->CopyOut(reinterpret_cast<std::byte*>(parts.data()),
                                            group.sums->data(), parts.size() * sizeof(double)));
  auto next = parts.begin();
  for (const size_t number : group.numbers) {
    const auto end = next + static_cast<std::ptrdiff_t>(PartsOf(*gradients[number]));
    sums[number] = std::accumulate(next, end, 0.0);
    next = end;
  }
  return absl::OkStatus();
}

absl::Status SumCopies(absl::Span<const Tensor* const> gradients, const Group& group,
                       std::vector<double>& sums) {
  for (const size_t number : group.numbers) {
    PSD_ASSIGN_OR_RETURN(const Tensor copy, gradients[number]->ToHost());
    sums[number] = SumHere(copy);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<double>> SumsOfSquares(absl::Span<const Tensor* const> gradients) {
  std::vector<double> sums(gradients.size());
  std::vector<Group> groups;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& gradient = *gradients[i];
    if (gradient.OnHost()) {
      sums[i] = SumHere(gradient);
      continue;
    }
    const auto takes = [&](const Group& group) {
      return group.device == gradient.device() && group.dtype == gradient.dtype();
    };
    auto group = std::find_if(groups.begin(), groups.end(), takes);
    if (group == groups.end())
      group = groups.insert(group, Group{gradient.device(), gradient.dtype(), {}, nullptr});
    group->numbers.push_back(i);
  }
  std::vector<absl::Status> added;
  for (Group& group : groups) added.push_back(AddWork(gradients, group));
  for (size_t i = 0; i < groups.size(); ++i) {
    if (absl::IsResourceExhausted(added[i])) {
      PSD_RETURN_IF_ERROR(SumCopies(gradients, groups[i], sums));
    } else {
      PSD_RETURN_IF_ERROR(added[i]);
      PSD_RETURN_IF_ERROR(TakeSums(gradients, groups[i], sums));
    }
  }
  return sums;
}

}  // namespace psd::optim
