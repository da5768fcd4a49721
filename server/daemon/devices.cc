#include "server/daemon/devices.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device_kernels/emulated/operator_kernels.h"
#include "core/device_kernels/emulated/optim_kernels.h"

namespace psd::server {
namespace {

// The budget of an emulated device without a configured one. Its memory is taken when it is used.
constexpr size_t kEmulatedBudgetBytes = size_t{1} << 30;

absl::Status WithoutCuda(const DeviceConfig& device) {
  return WithRemedy(absl::UnimplementedError(absl::StrCat(device.name(),
                                                          " cannot be opened, because this psd was "
                                                          "built without CUDA devices")),
                    absl::StrCat("leave ", device.name(), " out of 'devices'"));
}

// Opens all devices of `specs`, which are emulated, as one group. There may be none.
absl::StatusOr<std::vector<std::shared_ptr<EmulatedDevice>>> OpenEmulated(
    absl::Span<const EmulatedDeviceSpec> specs) {
  if (specs.empty()) return std::vector<std::shared_ptr<EmulatedDevice>>();
  EmulatedDeviceOptions options;
  options.kernels = emulated::OperatorKernels();
  options.kernels.Add(emulated::OptimKernels());
  options.most_blocks /= specs.size();  // together they must not exceed the process's mappings
  return EmulatedDevice::Create(specs, options);
}

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<Device>>> OpenDevices(
    absl::Span<const DeviceConfig> configured) {
  std::vector<EmulatedDeviceSpec> specs;
  for (const DeviceConfig& device : configured) {
    if (device.kind == DeviceConfig::Kind::kCuda) return WithoutCuda(device);
    specs.push_back(
        {device.number, device.budget_bytes != 0 ? device.budget_bytes : kEmulatedBudgetBytes});
  }
  PSD_ASSIGN_OR_RETURN(auto emulated, OpenEmulated(specs));
  return std::vector<std::shared_ptr<Device>>(emulated.begin(), emulated.end());
}

}  // namespace psd::server
