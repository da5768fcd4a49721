#include "core/device/emulated/emulated_device.h"
#include "tests/device/device_under_test.h"
#include "tests/device/test_device.h"

namespace psd::testing {

std::string NameOfDevice() {
  return "emu:0";
}

std::string WhyNoDevice() {
  return "";
}

std::shared_ptr<Device> OpenDeviceUnderTest(const DeviceUnderTestOptions& options) {
  if (options.shareable) return NewSharedTestDevice(options.seed, options.budget_bytes);
  return NewTestDevices(1, options.seed, options.budget_bytes, options.pinned_bytes)[0];
}

std::optional<size_t> KernelsGiven(const Device& device) {
  return static_cast<const EmulatedDevice&>(device).kernels_launched();
}

std::optional<size_t> CopiesGiven(const Device& device) {
  return static_cast<const EmulatedDevice&>(device).copies_added();
}

bool IsLazy(uint64_t seed) {
  return seed == 0;
}

bool HasFunctionsOfCpu() {
  return true;
}

}  // namespace psd::testing
