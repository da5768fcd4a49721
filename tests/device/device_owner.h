#pragma once

// An owner with an emulated device, whose memory the host cannot read.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/device/emulated/emulated_device.h"
#include "core/runtime/runtime.h"
#include "tests/client/test_world.h"
#include "tests/device/test_device.h"

namespace psd {

// Its device is called "emu:0" (tests/device/test_device.h).
class DeviceOwner {
 public:
  static constexpr size_t kBudgetBytes = size_t{1} << 20;  // of the device

  explicit DeviceOwner(const std::string& name, worker::RuntimeOptions options = {},
                       uint64_t seed = 0)
      : DeviceOwner(name, testing::NewTestDevice(seed, kBudgetBytes), std::move(options)) {}
  // As above, with another device.
  DeviceOwner(const std::string& name, std::shared_ptr<EmulatedDevice> device,
              worker::RuntimeOptions options = {})
      : device_(std::move(device)), owner_(name, WithDevice(*this, std::move(options))) {}

  TestOwner& owner() { return owner_; }
  EmulatedDevice& device() { return *device_; }

 private:
  static worker::RuntimeOptions WithDevice(DeviceOwner& self, worker::RuntimeOptions options) {
    options.devices.push_back(self.device_);
    return options;
  }

  const std::shared_ptr<EmulatedDevice> device_;
  TestOwner owner_;
};

}  // namespace psd
