#pragma once

// The gradient of some rows of a table, on the device that has the table.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/base/stream.h"
#include "core/optim/parameters/step_memory.h"
#include "core/tensor/sparse_tensor.h"
#include "kernels/rows/device_rows.h"
#include "kernels/rows/rows.h"

namespace psd::optim {

// Owns all memory of the device that a step of a table needs. It may be destroyed when the work of
// the step has been added. Confined to the thread of the step, whose CurrentStream it uses.
class DeviceGradient {
 public:
  // Copies the entries to `device`. If `groups` is not null, it groups them, may have rows without
  // entries, and is copied too. Otherwise the device will group them, and what it needs for that is
  // reserved. `rows` is the number of rows of the table. For `memory` see SendParts.
  // Requires: the device has the kernels GroupRows and GroupRowsScratch; `entries` has one sparse
  // axis. Errors: RESOURCE_EXHAUSTED; those of the device.
  static absl::StatusOr<DeviceGradient> Send(Device& device, const SparseTensor& entries,
                                             const kernels::RowGroups* groups, size_t rows,
                                             StepMemory& memory);

  // Returns the groups, and adds the work that makes them unless they were copied. To be called
  // once. Allocates nothing and cannot fail.
  const kernels::DeviceRowGroups& Group(Stream& stream) const;
  // The values of the entries.
  const std::byte* values() const { return sent_ == nullptr ? nullptr : sent_->data(); }

 private:
  // Both set groups_, and allocate the blocks.
  absl::Status SendToGroup(Device& device, const SparseTensor& entries, StepMemory& memory);
  absl::Status SendGrouped(Device& device, const SparseTensor& entries,
                           const kernels::RowGroups& groups, StepMemory& memory);

  size_t rows_ = 0;
  kernels::DeviceRowGroups groups_;
  // Not shared. Null if there is nothing to step.
  std::shared_ptr<Block> sent_;
  // For grouping on the device, otherwise null.
  std::shared_ptr<Block> found_;  // the groups
  std::shared_ptr<Block> scratch_;
  const int64_t* ids_ = nullptr;  // of the entries, in sent_
};

}  // namespace psd::optim
