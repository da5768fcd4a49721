#include "core/optim/parameters/device_gradient.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "core/base/status.h"
#include "core/optim/rows/row_kernels.h"
#include "core/tensor/tensor.h"

namespace psd::optim {
namespace {

// Arrays in one block of a device.
class ArraysInBlock {
 public:
  // Returns the offset of an array of `count` elements.
  template <typename T>
  size_t Add(size_t count) {
    const size_t offset = bytes_;
    bytes_ += (count * sizeof(T) + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
    return offset;
  }
  // The same for elements that are to be sent.
  template <typename T>
  size_t Add(const T* elements, size_t count) {
    const size_t offset = Add<T>(count);
    parts_.push_back({reinterpret_cast<const std::byte*>(elements), count * sizeof(T), offset});
    return offset;
  }
  absl::StatusOr<std::shared_ptr<Block>> Allocate(Device& device) const {
    return device.memory().Allocate(bytes_);
  }
  absl::StatusOr<std::shared_ptr<Block>> Send(Device& device, StepMemory& memory) const {
    PSD_ASSIGN_OR_RETURN(std::shared_ptr<Block> block, Allocate(device));
    PSD_RETURN_IF_ERROR(SendParts(device, parts_, *block, memory));
    return block;
  }

 private:
  size_t bytes_ = 0;
  absl::InlinedVector<SentPart, 5> parts_;
};

template <typename T>
T* ArrayAt(const Block& block, size_t offset) {
  return reinterpret_cast<T*>(block.data() + offset);
}

// Adds the values, which are the first array of their block.
void AddValues(const SparseTensor& entries, ArraysInBlock& arrays) {
  arrays.Add(entries.values().raw_data(), entries.values().NumBytes());
}

}  // namespace

absl::StatusOr<DeviceGradient> DeviceGradient::Send(Device& device, const SparseTensor& entries,
                                                    const kernels::RowGroups* groups, size_t rows,
                                                    StepMemory& memory) {
  // A step of several tables changes none of them if one is on a lost device, also if its own
  // gradient is empty.
  PSD_RETURN_IF_ERROR(device.health());
  DeviceGradient gradient;
  gradient.rows_ = rows;
  gradient.groups_.size = static_cast<size_t>(entries.NumEntries());
  // The device finds no more groups than there are rows.
  gradient.groups_.room =
      groups == nullptr ? std::min(gradient.groups_.size, rows) : groups->ids.size();
  if (gradient.groups_.room == 0) return gradient;
  PSD_RETURN_IF_ERROR(groups == nullptr ? gradient.SendToGroup(device, entries, memory)
                                        : gradient.SendGrouped(device, entries, *groups, memory));
  return gradient;
}

absl::Status DeviceGradient::SendToGroup(Device& device, const SparseTensor& entries,
                                         StepMemory& memory) {
  ArraysInBlock sent, found;
  AddValues(entries, sent);
  const size_t entry_ids = sent.Add(entries.indices().data<int64_t>(), groups_.size);
  const size_t ids = found.Add<int64_t>(groups_.room);
  const size_t begins = found.Add<uint32_t>(groups_.room + 1);
  const size_t positions = found.Add<uint32_t>(groups_.size);
  const size_t count = found.Add<uint32_t>(1);
  PSD_ASSIGN_OR_RETURN(GroupRowsScratchKernel* const scratch_of,
                       KernelOf(kGroupRowsScratch, device));
  PSD_ASSIGN_OR_RETURN(const size_t scratch_bytes,
                       scratch_of(CurrentStream(&device), groups_.size, rows_));
  PSD_ASSIGN_OR_RETURN(found_, found.Allocate(device));
  PSD_ASSIGN_OR_RETURN(scratch_, device.memory().Allocate(scratch_bytes));
  PSD_ASSIGN_OR_RETURN(sent_, sent.Send(device, memory));
  ids_ = ArrayAt<int64_t>(*sent_, entry_ids);
  groups_.ids = ArrayAt<int64_t>(*found_, ids);
  groups_.begins = ArrayAt<uint32_t>(*found_, begins);
  groups_.positions = ArrayAt<uint32_t>(*found_, positions);
  groups_.count = ArrayAt<uint32_t>(*found_, count);
  return absl::OkStatus();
}

absl::Status DeviceGradient::SendGrouped(Device& device, const SparseTensor& entries,
                                         const kernels::RowGroups& groups, StepMemory& memory) {
  const auto all = static_cast<uint32_t>(groups.ids.size());
  ArraysInBlock sent;
  AddValues(entries, sent);
  const size_t ids = sent.Add(groups.ids.data(), groups.ids.size());
  const size_t begins = sent.Add(groups.begins.data(), groups.begins.size());
  const size_t positions = sent.Add(groups.positions.data(), groups.positions.size());
  const size_t count = sent.Add(&all, 1);
  PSD_ASSIGN_OR_RETURN(sent_, sent.Send(device, memory));
  groups_.ids = ArrayAt<int64_t>(*sent_, ids);
  groups_.begins = ArrayAt<uint32_t>(*sent_, begins);
  groups_.positions = ArrayAt<uint32_t>(*sent_, positions);
  groups_.count = ArrayAt<uint32_t>(*sent_, count);
  return absl::OkStatus();
}

const kernels::DeviceRowGroups& DeviceGradient::Group(Stream& stream) const {
  if (ids_ != nullptr) {
    stream.device().kernels().Find(kGroupRows)(&stream, ids_, rows_, groups_, scratch_->data());
  }
  return groups_;
}

}  // namespace psd::optim
