#pragma once

// An owner with the device under test.

#include <cstdint>
#include <string>
#include <utility>

#include "core/base/device.h"
#include "core/runtime/runtime.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_with.h"

namespace psd {

// Without a device on this machine, the owner has none, and the test is skipped.
class OwnerUnderTest : public OwnerWith<Device> {
 public:
  explicit OwnerUnderTest(const std::string& name, worker::RuntimeOptions options = {},
                          uint64_t seed = 0)
      : OwnerUnderTest(name, std::move(options), Seeded(seed)) {}
  OwnerUnderTest(const std::string& name, worker::RuntimeOptions options,
                 const testing::DeviceUnderTestOptions& device)
      : OwnerWith(name, testing::OpenDeviceUnderTest(device), std::move(options)) {}

 private:
  static testing::DeviceUnderTestOptions Seeded(uint64_t seed) {
    testing::DeviceUnderTestOptions options;
    options.seed = seed;
    return options;
  }
};

}  // namespace psd
