#include "core/optim/parameters/device_squares.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "core/base/buffer.h"
#include "core/base/kernel_table.h"
#include "core/base/status.h"
#include "core/base/stream.h"
#include "core/optim/dense/optim_kernels.h"
#include "core/optim/functional/functional_optimizer.h"
#include "kernels/optim/arrays.h"

namespace psd::optim {
namespace {

// The sum of a group, once the device has done its work.
struct PendingSum {
  Device* device;
  std::shared_ptr<Block> block;  // the sum is its first element
};

absl::StatusOr<PendingSum> AddWork(Device& device, DType dtype,
                                   const std::vector<const Tensor*>& gradients) {
  PSD_ASSIGN_OR_RETURN(auto* const sum_of_squares, KernelOf(kSumOfSquares, device));
  PSD_ASSIGN_OR_RETURN(auto* const scratch_bytes, KernelOf(kSumOfSquaresScratch, device));
  std::vector<kernels::OptimArrays> arrays(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    arrays[i].gradient = gradients[i]->address();
    arrays[i].size = static_cast<size_t>(gradients[i]->NumElements());
  }
  kernels::OptimBatch batch;
  batch.type = OptimTypeOf(dtype);
  batch.arrays = arrays.data();
  batch.count = arrays.size();
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block,
                       device.memory().Allocate(sizeof(double) + scratch_bytes(batch)));
  sum_of_squares(CurrentStream(&device), batch, block->data() + sizeof(double),
                 reinterpret_cast<double*>(block->data()));
  return PendingSum{&device, std::move(block)};
}

}  // namespace

void DeviceSquares::Add(const Tensor& gradient) {
  const auto takes = [&](const Group& group) {
    return group.device == gradient.device() && group.dtype == gradient.dtype();
  };
  auto group = std::find_if(groups_.begin(), groups_.end(), takes);
  if (group == groups_.end())
    group = groups_.insert(group, Group{gradient.device(), gradient.dtype(), {}});
  group->gradients.push_back(&gradient);
}

absl::StatusOr<double> DeviceSquares::Sum() const {
  std::vector<PendingSum> sums;
  for (const Group& group : groups_) {
    PSD_ASSIGN_OR_RETURN(sums.emplace_back(), AddWork(*group.device, group.dtype, group.gradients));
  }
  double sum = 0;
  for (const PendingSum& each : sums) {
    double one = 0;
    PSD_RETURN_IF_ERROR(
        each.device->CopyOut(reinterpret_cast<std::byte*>(&one), each.block->data(), sizeof(one)));
    sum += one;
  }
  return sum;
}

}  // namespace psd::optim
