// The first GPU of this machine.

#include <algorithm>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_support.h"
#include "core/device_kernels/cuda/operator_kernels.h"
#include "core/device_kernels/cuda/optim_kernels.h"
#include "core/device_kernels/cuda/row_kernels.h"
#include "tests/device/device_under_test.h"

namespace psd::testing {

std::string NameOfDevice() {
  return "cuda:0";
}

std::string WhyNoDevice() {
  return std::string(cuda::CheckSupport(cuda::FindFacts(0)).message());
}

// Throws absl::BadStatusOrAccess if the GPU cannot be opened, so that a test on a GPU which was
// lost fails with its name, and the process goes on.
std::shared_ptr<Device> OpenDeviceUnderTest(const DeviceUnderTestOptions& options) {
  if (!WhyNoDevice().empty()) return nullptr;
  CudaDeviceOptions opened;
  opened.budget_bytes = std::max(options.budget_bytes, kGpuBudgetBytes);
  opened.pinned_bytes = options.pinned_bytes;
  opened.shareable = options.shareable;
  opened.kernels = cuda::OperatorKernels();
  opened.kernels.Add(cuda::OptimKernels());
  opened.kernels.Add(cuda::RowKernels());
  return OpenCudaDevice(opened).value();
}

std::optional<size_t> KernelsGiven(const Device& /*device*/) {
  return std::nullopt;
}

std::optional<size_t> CopiesGiven(const Device& /*device*/) {
  return std::nullopt;
}

bool IsLazy(uint64_t /*seed*/) {
  return false;
}

bool HasFunctionsOfCpu() {
  return false;
}

}  // namespace psd::testing
