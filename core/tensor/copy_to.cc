#include "core/tensor/copy_to.h"

namespace psd {

Allocator* MemoryOf(Device* device) {
  return device == nullptr ? nullptr : &device->memory();
}

absl::StatusOr<Tensor> CopyTo(Device* device, const Tensor& tensor) {
  if (tensor.device() == device) return tensor.Contiguous();
  return device == nullptr ? tensor.ToHost() : tensor.Clone(MemoryOf(device));
}

}  // namespace psd
