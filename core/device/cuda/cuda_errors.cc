#include "core/device/cuda/cuda_errors.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/device/device_errors.h"

namespace psd::cuda {

ErrorKind KindOf(int error) {
  switch (error) {
    case cudaSuccess:
      return ErrorKind::kNone;
    case cudaErrorMemoryAllocation:
      return ErrorKind::kNoMemory;
    // After these "the process must be terminated and relaunched", as driver_types.h of CUDA says.
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return ErrorKind::kLost;
    // The hardware failed.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
      return ErrorKind::kLost;
    // The driver, or the device's context, is gone, or nobody knows what happened.
    case cudaErrorCudartUnloading:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoDevice:
    case cudaErrorDeviceUninitialized:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorUnknown:
      return ErrorKind::kLost;
    default:
      return ErrorKind::kRefused;
  }
}

std::string Describe(int error) {
  const auto code = static_cast<cudaError_t>(error);
  return absl::StrCat(cudaGetErrorName(code), " (", error, "), ", cudaGetErrorString(code));
}

std::string FailureOf(int error, absl::string_view operation) {
  return absl::StrCat(operation, " failed: ", Describe(error));
}

absl::Status StatusOf(int error, absl::string_view device, absl::string_view operation) {
  switch (KindOf(error)) {
    case ErrorKind::kNone:
      return absl::OkStatus();
    case ErrorKind::kNoMemory:
      return WithRemedy(
          absl::ResourceExhaustedError(absl::StrCat("there is no memory for ", operation, " on ",
                                                    device, ": ", Describe(error))),
          "end other programs that use the GPU, or lower the budget of the device");
    case ErrorKind::kLost:
      return DeviceLost(device, FailureOf(error, operation));
    case ErrorKind::kRefused:
      return absl::InternalError(
          absl::StrCat(device, " refused ", operation, ": ", Describe(error)));
  }
  return absl::OkStatus();
}

}  // namespace psd::cuda
