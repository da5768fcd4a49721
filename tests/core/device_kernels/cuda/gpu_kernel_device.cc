#include <utility>

#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_support.h"
#include "core/device_kernels/cuda/operator_kernels.h"
#include "core/device_kernels/cuda/optim_kernels.h"
#include "core/device_kernels/cuda/row_kernels.h"
#include "tests/core/device_kernels/kernel_device.h"

namespace psd::testing {

KernelTable DeviceOperators() {
  return cuda::OperatorKernels();
}

KernelTable DeviceOptimizers() {
  return cuda::OptimKernels();
}

KernelTable DeviceRowKernels() {
  return cuda::RowKernels();
}

std::shared_ptr<Device> NewKernelDevice(KernelTable kernels, uint64_t /*seed*/) {
  if (!cuda::CheckSupport(cuda::FindFacts(0)).ok()) return nullptr;
  CudaDeviceOptions options;
  options.budget_bytes = size_t{64} << 20;
  options.pinned_bytes = size_t{16} << 20;
  options.kernels = std::move(kernels);
  return OpenCudaDevice(options).value();
}

size_t KernelsLaunched(const Device& /*device*/) {
  return 0;
}

}  // namespace psd::testing
