#include "core/device/cuda/cuda_support.h"

#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/device/cuda/cuda_errors.h"

namespace psd::cuda {
namespace {

// The oldest compute capability that psd's kernels are compiled for (_ARCHS in
// third_party/cuda/cuda_library.bzl).
constexpr int kLeastMajor = 8;

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::Status Missing(const CudaFacts& facts, absl::string_view what, absl::string_view remedy) {
  return CannotBeOpened(facts.index, what, remedy);
}

// Why the devices could not be counted, or that there is none.
absl::Status NoDevices(const CudaFacts& facts) {
  const std::string needed = VersionText(facts.runtime_version);
  if (facts.driver_version == 0 || facts.count_error == cudaErrorStubLibrary)
    return Missing(
        facts, "this machine has no NVIDIA driver",
        absl::StrCat("install a driver for CUDA ", needed, " or newer, or leave the device out"));
  if (facts.count_error == cudaErrorInsufficientDriver)
    return Missing(facts,
                   absl::StrCat("the NVIDIA driver is for CUDA ", VersionText(facts.driver_version),
                                ", and this psd needs CUDA ", needed),
                   absl::StrCat("install a driver for CUDA ", needed, " or newer"));
  if (facts.count_error == cudaErrorNoDevice || facts.count_error == cudaSuccess)
    return Missing(facts, "the NVIDIA driver shows no GPU",
                   "look at the output of nvidia-smi and at CUDA_VISIBLE_DEVICES");
  return Missing(facts, absl::StrCat("the GPUs cannot be counted: ", Describe(facts.count_error)),
                 "look at the output of nvidia-smi, and restart the machine if the driver was "
                 "updated");
}

}  // namespace

absl::Status CannotBeOpened(int index, absl::string_view what, absl::string_view remedy) {
  return WithRemedy(
      absl::FailedPreconditionError(absl::StrCat("cuda:", index, " cannot be opened: ", what)),
      remedy);
}

CudaFacts FindFacts(int index) {
  CudaFacts facts;
  facts.index = index;
  cudaRuntimeGetVersion(&facts.runtime_version);
  if (cudaDriverGetVersion(&facts.driver_version) != cudaSuccess) facts.driver_version = 0;
  facts.count_error = cudaGetDeviceCount(&facts.device_count);
  if (facts.count_error != cudaSuccess) facts.device_count = 0;
  if (index >= 0 && index < facts.device_count) {
    int pools = 0;
    cudaDeviceGetAttribute(&facts.major, cudaDevAttrComputeCapabilityMajor, index);
    cudaDeviceGetAttribute(&facts.minor, cudaDevAttrComputeCapabilityMinor, index);
    cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, index);
    facts.has_memory_pools = pools != 0;
    int handles = 0;
    cudaDeviceGetAttribute(&handles, cudaDevAttrMemoryPoolSupportedHandleTypes, index);
    facts.has_shared_pools = (handles & cudaMemHandleTypePosixFileDescriptor) != 0;
  }
  cudaGetLastError();  // so that no later call of this thread seems to have failed
  return facts;
}

absl::Status CheckSupport(const CudaFacts& facts) {
  if (facts.count_error != cudaSuccess || facts.device_count == 0) return NoDevices(facts);
  if (facts.index < 0 || facts.index >= facts.device_count)
    return Missing(facts,
                   absl::StrCat("this machine has ", facts.device_count, " GPUs for this process"),
                   absl::StrCat("choose from cuda:0 to cuda:", facts.device_count - 1,
                                ", or look at CUDA_VISIBLE_DEVICES"));
  if (facts.major < kLeastMajor)
    return Missing(facts,
                   absl::StrCat("the GPU has compute capability ", facts.major, ".", facts.minor,
                                ", and psd has kernels for ", kLeastMajor, ".0 and newer"),
                   "choose a newer GPU");
  if (!facts.has_memory_pools)
    return Missing(facts, "the driver offers no memory pools for the GPU",
                   "turn them on in the settings of the virtual machine, or choose another GPU");
  return absl::OkStatus();
}

absl::Status CheckSharing(const CudaFacts& facts) {
  if (facts.has_shared_pools) return absl::OkStatus();
  return Missing(facts, "the driver cannot share memory of the GPU between processes",
                 "open the device without sharing, or choose another GPU");
}

}  // namespace psd::cuda
