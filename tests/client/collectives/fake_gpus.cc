// GPUs of the fake of CUDA, whose library is the fake of NCCL.

#include <cuda_runtime_api.h>

#include "tests/client/collectives/gpu_group.h"
#include "tests/core/device/cuda/fake_cuda.h"

namespace psd {

Gpus FindGpus() {
  testing::FakeMachine machine;
  machine.device_count = 3;
  machine.memory_bytes = size_t{32} << 20;
  testing::ResetFakeCuda(machine);
  Gpus gpus;
  for (int index = 0; index < machine.device_count; ++index) {
    CudaDeviceOptions options;
    options.index = index;
    options.budget_bytes = size_t{16} << 20;
    options.pinned_bytes = size_t{1} << 20;
    options.nccl = "tests/core/device/cuda/libfake_nccl.so";
    gpus.options.push_back(options);
  }
  return gpus;
}

HeldGpu::HeldGpu(CudaDevice& device, int index) : device_(device) {
  EXPECT_EQ(cudaSetDevice(index), cudaSuccess);
  EXPECT_EQ(testing::AddFakeAttempt(device.default_stream().handle(),
                                    [this] { return released_.load(); }),
            0);
}

void HeldGpu::Release() {
  if (released_.exchange(true)) return;
  testing::RetryFakeAttempts();
  EXPECT_TRUE(device_.Synchronize().ok());
}

}  // namespace psd
