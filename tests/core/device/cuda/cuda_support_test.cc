// What psd says of machines and errors, with the real runtime of CUDA and without a GPU.

#include "core/device/cuda/cuda_support.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "core/base/status.h"
#include "core/device/cuda/cublas_lt.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/cuda/cuda_errors.h"
#include "gmock/gmock.h"

namespace psd::cuda {
namespace {

using ::testing::HasSubstr;

// A machine with two GPUs of compute capability 9.0.
CudaFacts GoodFacts() {
  CudaFacts facts;
  facts.runtime_version = 13000;
  facts.driver_version = 13010;
  facts.device_count = 2;
  facts.major = 9;
  facts.has_memory_pools = true;
  return facts;
}

void ExpectMissing(const CudaFacts& facts, const std::string& sentence) {
  const absl::Status status = CheckSupport(facts);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), sentence);
  EXPECT_TRUE(GetDetail(status).has_value() && !GetDetail(status)->remedy.empty());
}

TEST(CudaSupportTest, AGoodMachineLacksNothing) {
  EXPECT_TRUE(CheckSupport(GoodFacts()).ok());
}

TEST(CudaSupportTest, ADriverThatCannotShareMemoryIsNamedIfItShall) {
  CudaFacts facts = GoodFacts();
  EXPECT_EQ(CheckSharing(facts).message(),
            "cuda:0 cannot be opened: the driver cannot share memory of the GPU between "
            "processes; open the device without sharing, or choose another GPU");
  facts.has_shared_pools = true;
  EXPECT_TRUE(CheckSharing(facts).ok());
}

TEST(CudaSupportTest, AMissingDriverIsNamed) {
  CudaFacts facts = GoodFacts();
  facts.driver_version = facts.device_count = 0;
  facts.count_error = cudaErrorInsufficientDriver;
  ExpectMissing(facts,
                "cuda:0 cannot be opened: this machine has no NVIDIA driver; install a driver for "
                "CUDA 13.0 or newer, or leave the device out");
}

TEST(CudaSupportTest, ADriverThatIsTooOldIsNamed) {
  CudaFacts facts = GoodFacts();
  facts.driver_version = 12040;
  facts.device_count = 0;
  facts.count_error = cudaErrorInsufficientDriver;
  ExpectMissing(facts,
                "cuda:0 cannot be opened: the NVIDIA driver is for CUDA 12.4, and this psd needs "
                "CUDA 13.0; install a driver for CUDA 13.0 or newer");
}

TEST(CudaSupportTest, AMissingGpuIsNamed) {
  CudaFacts facts = GoodFacts();
  facts.index = 2;
  ExpectMissing(facts,
                "cuda:2 cannot be opened: this machine has 2 GPUs for this process; choose from "
                "cuda:0 to cuda:1, or look at CUDA_VISIBLE_DEVICES");
  facts.device_count = 0;
  facts.count_error = cudaErrorNoDevice;
  ExpectMissing(facts,
                "cuda:2 cannot be opened: the NVIDIA driver shows no GPU; look at the output of "
                "nvidia-smi and at CUDA_VISIBLE_DEVICES");
}

TEST(CudaSupportTest, AGpuThatIsTooOldIsNamed) {
  CudaFacts facts = GoodFacts();
  facts.major = 7;
  facts.minor = 5;
  ExpectMissing(facts,
                "cuda:0 cannot be opened: the GPU has compute capability 7.5, and psd has kernels "
                "for 8.0 and newer; choose a newer GPU");
}

TEST(CudaSupportTest, ADriverWithoutMemoryPoolsIsNamed) {
  CudaFacts facts = GoodFacts();
  facts.has_memory_pools = false;
  EXPECT_THAT(CheckSupport(facts).message(), HasSubstr("offers no memory pools"));
}

TEST(CudaSupportTest, AnotherErrorIsQuoted) {
  CudaFacts facts = GoodFacts();
  facts.device_count = 0;
  facts.count_error = cudaErrorSystemDriverMismatch;
  EXPECT_THAT(CheckSupport(facts).message(),
              HasSubstr("the GPUs cannot be counted: cudaErrorSystemDriverMismatch (803), "));
}

// On a machine with a driver, CUDA shows no GPU either.
TEST(CudaSupportTest, OpeningADeviceWithoutAGpuSaysWhatIsMissing) {
  ASSERT_EQ(setenv("CUDA_VISIBLE_DEVICES", "-1", 1), 0);
  const auto device = OpenCudaDevice({});
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  const int driver = FindFacts(0).driver_version;
  EXPECT_THAT(device.status().message(),
              HasSubstr(driver == 0 ? "this machine has no NVIDIA driver; install a driver for CUDA"
                                    : "the NVIDIA driver "));
}

// The toolkit brings the library. Without a GPU it can be loaded, and no more.
TEST(CublasLtTest, TheToolkitsLibraryHasAllFunctions) {
  const auto lt = LoadCublasLt("cuda:0", "");
  if (absl::IsFailedPrecondition(lt.status()) &&
      absl::StrContains(lt.status().message(), "cannot open shared object file"))
    GTEST_SKIP() << lt.status().message();
  ASSERT_TRUE(lt.ok()) << lt.status();
  EXPECT_EQ(lt->GetVersion() / 10000, size_t{CUBLAS_VER_MAJOR});
  EXPECT_STREQ(lt->GetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

TEST(CudaErrorsTest, SuccessIsOk) {
  EXPECT_TRUE(StatusOf(cudaSuccess, "cuda:0", "x").ok());
}

TEST(CudaErrorsTest, ErrorsThatOnlyANewProcessEndsLoseTheDevice) {
  for (const cudaError_t error :
       {cudaErrorIllegalAddress, cudaErrorLaunchTimeout, cudaErrorAssert,
        cudaErrorHardwareStackError, cudaErrorIllegalInstruction, cudaErrorMisalignedAddress,
        cudaErrorInvalidAddressSpace, cudaErrorInvalidPc, cudaErrorLaunchFailure,
        cudaErrorTensorMemoryLeak, cudaErrorContained, cudaErrorExternalDevice,
        cudaErrorMpsClientTerminated, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
        cudaErrorNoDevice, cudaErrorDevicesUnavailable, cudaErrorContextIsDestroyed,
        cudaErrorUnknown}) {
    EXPECT_EQ(KindOf(error), ErrorKind::kLost) << error;
    EXPECT_EQ(StatusOf(error, "cuda:0", "x").code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_THAT(StatusOf(cudaErrorIllegalAddress, "cuda:1", "Adam on stream 0 of cuda:1").message(),
              HasSubstr("cuda:1 is lost: Adam on stream 0 of cuda:1 failed: "
                        "cudaErrorIllegalAddress (700), an illegal memory access was encountered"));
}

TEST(CudaErrorsTest, OutOfMemoryAndRefusedCallsLeaveTheDevice) {
  EXPECT_EQ(StatusOf(cudaErrorMemoryAllocation, "cuda:0", "x").code(),
            absl::StatusCode::kResourceExhausted);
  for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorInvalidConfiguration,
                                  cudaErrorInvalidResourceHandle, cudaErrorNotSupported}) {
    EXPECT_EQ(KindOf(error), ErrorKind::kRefused) << error;
    EXPECT_EQ(StatusOf(error, "cuda:0", "x").code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace psd::cuda
