#pragma once

// Whether this machine can run psd's kernels on one of its GPUs, and what it lacks otherwise.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd::cuda {

// The answers of CUDA about the machine and one of its devices. Versions have the form of CUDA:
// 13010 is 13.1.
struct CudaFacts {
  int index = 0;            // of the device, among those that CUDA_VISIBLE_DEVICES lets CUDA see
  int runtime_version = 0;  // of the runtime that psd was built with
  int driver_version = 0;   // the newest CUDA that the driver knows; 0 without a driver
  int count_error = 0;      // a cudaError_t, 0 if the devices could be counted
  int device_count = 0;
  // The next four describe the device. They have no meaning if it does not exist.
  int major = 0;  // compute capability
  int minor = 0;
  bool has_memory_pools = false;
  bool has_shared_pools = false;  // by file descriptor
};

// Asks CUDA. Does not initialise the device.
CudaFacts FindFacts(int index);

// FAILED_PRECONDITION: the device with this index cannot be opened because of `what`.
absl::Status CannotBeOpened(int index, absl::string_view what, absl::string_view remedy);

// OK if the device can be opened. Otherwise FAILED_PRECONDITION, one sentence that names the device
// and says what is missing and what to do. Pure.
absl::Status CheckSupport(const CudaFacts& facts);

// The same for a device whose memory other processes shall import. Requires: CheckSupport is OK.
absl::Status CheckSharing(const CudaFacts& facts);

}  // namespace psd::cuda
