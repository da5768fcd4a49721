#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/runtime/runtime.h"
#include "tests/client/test_world.h"

namespace psd {

// An owner with one device, which is an AnyDevice.
template <typename AnyDevice>
class OwnerWith {
 public:
  // With null, the owner has no device.
  OwnerWith(const std::string& name, std::shared_ptr<AnyDevice> device,
            worker::RuntimeOptions options = {})
      : device_(std::move(device)), owner_(name, WithDevice(device_, std::move(options))) {}

  TestOwner& owner() { return owner_; }
  // Requires: there is one.
  AnyDevice& device() { return *device_; }

 private:
  static worker::RuntimeOptions WithDevice(const std::shared_ptr<AnyDevice>& device,
                                           worker::RuntimeOptions options) {
    if (device != nullptr) options.devices.push_back(device);
    return options;
  }

  const std::shared_ptr<AnyDevice> device_;  // shared with the owner
  TestOwner owner_;
};

}  // namespace psd
