#pragma once

// Sums the squares of gradients where they are.

#include <vector>

#include "absl/status/statusor.h"
#include "core/base/device.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"

namespace psd::optim {

// Gradients on devices. Confined to one thread.
class DeviceSquares {
 public:
  // `gradient` must live until Sum has returned.
  // Requires: it is contiguous, of a floating dtype, and on a device.
  void Add(const Tensor& gradient);
  // Returns the sum of the squares of all elements, which is finite if and only if all elements
  // are, except that a sum of doubles may overflow. Adds the work for all devices to the thread's
  // CurrentStream of each, and then waits for it. Errors: UNIMPLEMENTED naming a device that has no
  // such kernel; RESOURCE_EXHAUSTED; those of the devices.
  absl::StatusOr<double> Sum() const;

 private:
  // Those of one device and dtype.
  struct Group {
    Device* device;
    DType dtype;
    std::vector<const Tensor*> gradients;
  };
  std::vector<Group> groups_;
};

}  // namespace psd::optim
