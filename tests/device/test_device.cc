#include "tests/device/test_device.h"

#include <utility>

#include "core/base/kernel_table.h"
#include "core/base/status.h"
#include "core/device_kernels/emulated/operator_kernels.h"
#include "core/device_kernels/emulated/optim_kernels.h"
#include "core/device_kernels/emulated/row_kernels.h"

namespace psd::testing {
namespace {

std::vector<std::shared_ptr<EmulatedDevice>> Create(int count, EmulatedDeviceOptions options) {
  options.kernels = emulated::OperatorKernels();
  options.kernels.Add(emulated::OptimKernels());
  options.kernels.Add(emulated::RowKernels());
  auto devices = EmulatedDevice::Create(count, options);
  PSD_CHECK(devices.ok(), devices.status().message());
  return *std::move(devices);
}

}  // namespace

std::vector<std::shared_ptr<EmulatedDevice>> NewTestDevices(int count, uint64_t seed,
                                                            size_t budget_bytes,
                                                            size_t pinned_bytes) {
  EmulatedDeviceOptions options;
  options.budget_bytes = budget_bytes;
  options.pinned_bytes = pinned_bytes;
  options.seed = seed;
  return Create(count, options);
}

std::shared_ptr<EmulatedDevice> NewSharedTestDevice(uint64_t seed, size_t budget_bytes) {
  EmulatedDeviceOptions options;
  options.budget_bytes = budget_bytes;
  options.seed = seed;
  options.shareable = true;
  return Create(1, options)[0];
}

std::shared_ptr<EmulatedDevice> NewTestDevice(uint64_t seed, size_t budget_bytes) {
  return NewTestDevices(1, seed, budget_bytes)[0];
}

}  // namespace psd::testing
