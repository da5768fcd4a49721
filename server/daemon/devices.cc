#include "server/daemon/devices.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device_kernels/emulated/operator_kernels.h"
#include "core/device_kernels/emulated/optim_kernels.h"
#include "core/device_kernels/emulated/row_kernels.h"
#ifdef PSD_CUDA
#include "core/device/cuda/cuda_device.h"
#include "core/device_kernels/cuda/operator_kernels.h"
#include "core/device_kernels/cuda/optim_kernels.h"
#include "core/device_kernels/cuda/row_kernels.h"
#endif

namespace psd::server {
namespace {

// The budget of an emulated device without a configured one. Its memory is taken when it is used.
constexpr size_t kEmulatedBudgetBytes = size_t{1} << 30;

#ifdef PSD_CUDA
absl::StatusOr<std::shared_ptr<Device>> OpenCuda(const DeviceConfig& device,
                                                 const DeviceOptions& wanted) {
  CudaDeviceOptions options;
  options.index = device.number;
  options.budget_bytes = device.budget_bytes;
  options.shareable = wanted.shareable;
  options.allow_tf32 = wanted.allow_tf32;
  options.kernels = cuda::OperatorKernels();
  options.kernels.Add(cuda::OptimKernels());
  options.kernels.Add(cuda::RowKernels());
  return OpenCudaDevice(options);
}
#else
absl::StatusOr<std::shared_ptr<Device>> OpenCuda(const DeviceConfig& device,
                                                 const DeviceOptions& /*wanted*/) {
  return WithRemedy(absl::UnimplementedError(absl::StrCat(device.name(),
                                                          " cannot be opened, because this psd was "
                                                          "built without CUDA devices")),
                    absl::StrCat("leave ", device.name(), " out of 'devices'"));
}
#endif

// Opens all devices of `specs`, which are emulated, as one group. There may be none.
absl::StatusOr<std::vector<std::shared_ptr<EmulatedDevice>>> OpenEmulated(
    absl::Span<const EmulatedDeviceSpec> specs, bool shareable) {
  if (specs.empty()) return std::vector<std::shared_ptr<EmulatedDevice>>();
  EmulatedDeviceOptions options;
  options.kernels = emulated::OperatorKernels();
  options.kernels.Add(emulated::OptimKernels());
  options.kernels.Add(emulated::RowKernels());
  options.shareable = shareable;
  options.most_blocks /= specs.size();  // together they must not exceed the process's mappings
  return EmulatedDevice::Create(specs, options);
}

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<Device>>> OpenDevices(
    absl::Span<const DeviceConfig> configured, const DeviceOptions& options) {
  std::vector<std::shared_ptr<Device>> devices;
  std::vector<EmulatedDeviceSpec> specs;
  for (const DeviceConfig& device : configured) {
    if (device.kind == DeviceConfig::Kind::kCuda) {
      PSD_ASSIGN_OR_RETURN(devices.emplace_back(), OpenCuda(device, options));
      continue;
    }
    devices.push_back(nullptr);  // its place
    specs.push_back(
        {device.number, device.budget_bytes != 0 ? device.budget_bytes : kEmulatedBudgetBytes});
  }
  PSD_ASSIGN_OR_RETURN(const auto emulated, OpenEmulated(specs, options.shareable));
  auto next = emulated.begin();
  for (std::shared_ptr<Device>& device : devices)
    if (device == nullptr) device = *next++;
  return devices;
}

}  // namespace psd::server
