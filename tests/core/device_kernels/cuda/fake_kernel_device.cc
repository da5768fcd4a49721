// CUDA devices on the fake of CUDA's runtime, which runs no kernels but the fake cublasLt's
// products.

#include <utility>

#include "core/device/cuda/cuda_device.h"
#include "core/device_kernels/cuda/matmul_kernel.h"
#include "core/tensor/ops/kernels.h"
#include "tests/core/device/cuda/fake_cuda.h"
#include "tests/core/device_kernels/kernel_device.h"

namespace psd::testing {

KernelTable DeviceOperators() {
  KernelTable table;
  table.Add(ops::kMatmul, cuda::Matmul);
  return table;
}

std::shared_ptr<Device> NewKernelDevice(KernelTable kernels, uint64_t /*seed*/) {
  FakeMachine machine;
  machine.memory_bytes = size_t{16} << 20;
  ResetFakeCuda(machine);
  CudaDeviceOptions options;
  options.budget_bytes = machine.memory_bytes;
  options.cublas_lt = "tests/core/device/cuda/libfake_cublas_lt.so";
  options.kernels = std::move(kernels);
  return OpenCudaDevice(options).value();
}

}  // namespace psd::testing
