#pragma once

// An owner with an emulated device, whose memory the host cannot read.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/device/emulated/emulated_device.h"
#include "core/runtime/runtime.h"
#include "tests/device/owner_with.h"
#include "tests/device/test_device.h"

namespace psd {

// Its device is called "emu:0" (tests/device/test_device.h).
class DeviceOwner : public OwnerWith<EmulatedDevice> {
 public:
  static constexpr size_t kBudgetBytes = size_t{1} << 20;  // of the device

  explicit DeviceOwner(const std::string& name, worker::RuntimeOptions options = {},
                       uint64_t seed = 0)
      : DeviceOwner(name, testing::NewTestDevice(seed, kBudgetBytes), std::move(options)) {}
  // As above, with another device.
  DeviceOwner(const std::string& name, std::shared_ptr<EmulatedDevice> device,
              worker::RuntimeOptions options = {})
      : OwnerWith(name, std::move(device), std::move(options)) {}
};

}  // namespace psd
