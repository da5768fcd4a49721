// The GPUs of this machine, and its NCCL.

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/device/cuda/cuda_support.h"
#include "tests/client/collectives/gpu_group.h"

namespace psd {

Gpus FindGpus() {
  constexpr int kMostRanks = 4;
  Gpus gpus;
  if (const absl::Status support = cuda::CheckSupport(cuda::FindFacts(0)); !support.ok()) {
    gpus.missing = std::string(support.message());
    return gpus;
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    gpus.missing = absl::StrCat("a group of GPUs needs 2 of them; this machine has ", count);
    return gpus;
  }
  for (int index = 0; index < std::min(count, kMostRanks); ++index) {
    CudaDeviceOptions options;
    options.index = index;
    options.budget_bytes = size_t{256} << 20;
    options.pinned_bytes = size_t{16} << 20;
    gpus.options.push_back(options);
  }
  return gpus;
}

HeldGpu::HeldGpu(CudaDevice& device, int index) : device_(device) {
  EXPECT_EQ(cudaSetDevice(index), cudaSuccess);
  const auto wait = [](void* released) {
    while (!static_cast<std::atomic<bool>*>(released)->load())
      absl::SleepFor(absl::Milliseconds(1));
  };
  EXPECT_EQ(cudaLaunchHostFunc(device.default_stream().handle(), wait, &released_), cudaSuccess);
}

void HeldGpu::Release() {
  if (released_.exchange(true)) return;
  EXPECT_TRUE(device_.Synchronize().ok());
}

}  // namespace psd
