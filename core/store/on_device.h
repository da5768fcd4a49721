#pragma once

// Where the elements of values are.

#include <optional>

#include "absl/status/statusor.h"
#include "core/base/device.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"

namespace psd::store {

// The device on which a caller wants the tensors that it gets, where null is the host. Without a
// value, tensors of its own worker stay where they are, and those of other workers are on the host.
using WantedDevice = std::optional<Device*>;

// Whether elements of `value` are on a device, so that reading them may wait for the device.
bool IsOnDevice(const Value& value);

// Returns `tensor` if it is on `device`, otherwise a copy there. A null device is the host. May
// wait for the devices. Errors: those of Tensor::Clone.
absl::StatusOr<Tensor> OnDevice(const Tensor& tensor, Device* device);
// As above for a value: all tensors in it are on `device` afterwards, those in lists and maps too.
// Copies are constants. Errors: also UNIMPLEMENTED naming both devices, if a tensor that is to be
// copied has a history.
absl::StatusOr<Value> OnDevice(const Value& value, Device* device);

}  // namespace psd::store
