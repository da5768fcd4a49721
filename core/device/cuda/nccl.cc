#include "core/device/cuda/nccl.h"

#include <dlfcn.h>

#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::cuda {
namespace {

absl::Status CannotCommunicate(absl::string_view device, absl::string_view why) {
  return WithRemedy(
      absl::FailedPreconditionError(
          absl::StrCat(device, " cannot communicate with other GPUs without NCCL: ", why)),
      absl::StrCat("install NCCL ", NcclVersionText(NCCL_VERSION_CODE),
                   " or newer, or start the worker with its folder in LD_LIBRARY_PATH"));
}

std::vector<std::string> FilesFor(const std::string& library) {
  if (!library.empty()) return {library};
  const std::string name = absl::StrCat("libnccl.so.", NCCL_MAJOR);
  return {name, absl::StrCat("/usr/local/cuda/lib64/", name)};
}

}  // namespace

std::string NcclVersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<Nccl> LoadNccl(absl::string_view device, const std::string& library) {
  void* loaded = nullptr;
  std::string file;
  std::vector<std::string> failures;  // each names its file
  for (const std::string& each : FilesFor(library)) {
    loaded = dlopen(each.c_str(), RTLD_NOW | RTLD_LOCAL);
    file = each;
    if (loaded != nullptr) break;
    failures.emplace_back(dlerror());
  }
  if (loaded == nullptr) return CannotCommunicate(device, absl::StrJoin(failures, "; "));

  Nccl nccl = {};
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    void* const address = dlsym(loaded, name);
    if (address == nullptr && missing.empty()) missing = name;
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
  };
  find("ncclGetVersion", nccl.GetVersion);
  find("ncclGetErrorString", nccl.GetErrorString);
  find("ncclGetLastError", nccl.GetLastError);
  find("ncclGetUniqueId", nccl.GetUniqueId);
  find("ncclCommInitRankConfig", nccl.CommInitRankConfig);
  find("ncclCommGetAsyncError", nccl.CommGetAsyncError);
  find("ncclCommFinalize", nccl.CommFinalize);
  find("ncclCommDestroy", nccl.CommDestroy);
  find("ncclCommAbort", nccl.CommAbort);
  find("ncclAllReduce", nccl.AllReduce);
  find("ncclReduceScatter", nccl.ReduceScatter);
  find("ncclAllGather", nccl.AllGather);
  find("ncclBroadcast", nccl.Broadcast);
  find("ncclGather", nccl.Gather);
  // An old library is better described by its version than by the functions that it lacks.
  if (nccl.GetVersion != nullptr) {
    if (nccl.GetVersion(&nccl.version) != ncclSuccess) nccl.version = 0;
    if (nccl.version < NCCL_VERSION_CODE || nccl.version / 10000 != NCCL_MAJOR)
      return CannotCommunicate(
          device, absl::StrCat(file, " has version ", NcclVersionText(nccl.version),
                               ", and this psd needs ", NcclVersionText(NCCL_VERSION_CODE),
                               " or a newer ", NCCL_MAJOR, ".x"));
  }
  if (!missing.empty())
    return CannotCommunicate(device, absl::StrCat(file, " has no function ", missing));
  return nccl;
}

}  // namespace psd::cuda
