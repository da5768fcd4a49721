#pragma once

// NCCL, the library of NVIDIA for collective operations of GPUs. psd does not link it: it has some
// hundred megabytes, and a worker without a group on GPUs does not need it.

#include <nccl.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::cuda {

// Functions of the library, as nccl.h declares them, and its version. A value.
struct Nccl {
  int version = 0;  // as NCCL_VERSION_CODE
  decltype(&ncclGetVersion) GetVersion;
  decltype(&ncclGetErrorString) GetErrorString;
  decltype(&ncclGetLastError) GetLastError;
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError;
  decltype(&ncclCommFinalize) CommFinalize;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclCommAbort) CommAbort;
  decltype(&ncclAllReduce) AllReduce;
  decltype(&ncclReduceScatter) ReduceScatter;
  decltype(&ncclAllGather) AllGather;
  decltype(&ncclBroadcast) Broadcast;
  decltype(&ncclGather) Gather;
};

// "2.28.9" for 22809.
std::string NcclVersionText(int version);

// Loads the library from the file `library`. If that is empty, looks where the system's loader
// looks and then in CUDA's folder. The library stays loaded until the process ends. Needs no GPU.
// Errors: FAILED_PRECONDITION naming the device, what was searched and what is wrong with it, if
// the library is missing, lacks a function, has another major version than psd was built with, or
// is older than that.
absl::StatusOr<Nccl> LoadNccl(absl::string_view device, const std::string& library);

}  // namespace psd::cuda
