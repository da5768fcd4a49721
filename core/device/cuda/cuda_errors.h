#pragma once

// Translates errors of CUDA's runtime to statuses. Pure; no call here needs a driver. An `error` is
// a cudaError_t.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd::cuda {

enum class ErrorKind {
  kNone,
  kNoMemory,  // of the device or the host; the device goes on
  kLost,      // the device is of no use any more until the process ends, or at all
  kRefused,   // the call did nothing; the device goes on
};
ErrorKind KindOf(int error);

// For example "cudaErrorIllegalAddress (700), an illegal memory access was encountered".
std::string Describe(int error);

// Why a device is lost: `operation` failed with `error`.
std::string FailureOf(int error, absl::string_view operation);

// Returns the status of a call that was to do `operation`, for example "CopyIn on stream 0 of
// cuda:0", on the device called `device`. OK for cudaSuccess; RESOURCE_EXHAUSTED for kNoMemory;
// UNAVAILABLE naming the device for kLost (DeviceLost in core/device/device_errors.h); INTERNAL for
// all other errors, which are mistakes of psd.
absl::Status StatusOf(int error, absl::string_view device, absl::string_view operation);

}  // namespace psd::cuda
