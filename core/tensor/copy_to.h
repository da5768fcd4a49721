#pragma once

// Tensors on the host and on devices.

#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/tensor/tensor.h"

namespace psd {

// Returns the allocator for tensors on `device`. A null device means the host, for which the
// allocator is null too (see Tensor::Empty).
Allocator* MemoryOf(Device* device);

// Returns `tensor` if it is contiguous and on `device`, otherwise a contiguous copy there. A null
// device means the host. Copies are work of the CurrentStream of the thread; those to the host are
// done when the function returns. Requires: the tensor is defined.
// Errors: those of Tensor::Clone.
absl::StatusOr<Tensor> CopyTo(Device* device, const Tensor& tensor);

}  // namespace psd
