#include <utility>

#include "core/device/emulated/emulated_device.h"
#include "core/device_kernels/emulated/operator_kernels.h"
#include "core/device_kernels/emulated/optim_kernels.h"
#include "core/device_kernels/emulated/row_kernels.h"
#include "tests/core/device_kernels/device_memory.h"
#include "tests/core/device_kernels/kernel_device.h"

namespace psd::testing {

KernelTable DeviceOperators() {
  return emulated::OperatorKernels();
}

KernelTable DeviceOptimizers() {
  return emulated::OptimKernels();
}

KernelTable DeviceRowKernels() {
  return emulated::RowKernels();
}

std::shared_ptr<Device> NewKernelDevice(KernelTable kernels, uint64_t seed) {
  return DeviceWith(std::move(kernels), seed);
}

size_t KernelsLaunched(const Device& device) {
  return static_cast<const EmulatedDevice&>(device).kernels_launched();
}

}  // namespace psd::testing
