#include "core/device/cuda/nccl.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/device/cuda/loaded_library.h"

namespace psd::cuda {
namespace {

absl::Status CannotCommunicate(absl::string_view device, absl::string_view why) {
  return WithRemedy(
      absl::FailedPreconditionError(
          absl::StrCat(device, " cannot communicate with other GPUs without NCCL: ", why)),
      absl::StrCat("install NCCL ", NcclVersionText(NCCL_VERSION_CODE),
                   " or newer, or start the worker with its folder in LD_LIBRARY_PATH"));
}

}  // namespace

std::string NcclVersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<Nccl> LoadNccl(absl::string_view device, const std::string& library) {
  absl::StatusOr<LoadedLibrary> loaded =
      LoadedLibrary::Load(library, absl::StrCat("libnccl.so.", NCCL_MAJOR));
  if (!loaded.ok()) return CannotCommunicate(device, loaded.status().message());

  Nccl nccl = {};
  loaded->Find("ncclGetVersion", nccl.GetVersion);
  loaded->Find("ncclGetErrorString", nccl.GetErrorString);
  loaded->Find("ncclGetLastError", nccl.GetLastError);
  loaded->Find("ncclGetUniqueId", nccl.GetUniqueId);
  loaded->Find("ncclCommInitRankConfig", nccl.CommInitRankConfig);
  loaded->Find("ncclCommGetAsyncError", nccl.CommGetAsyncError);
  loaded->Find("ncclCommFinalize", nccl.CommFinalize);
  loaded->Find("ncclCommDestroy", nccl.CommDestroy);
  loaded->Find("ncclCommAbort", nccl.CommAbort);
  loaded->Find("ncclAllReduce", nccl.AllReduce);
  loaded->Find("ncclReduceScatter", nccl.ReduceScatter);
  loaded->Find("ncclAllGather", nccl.AllGather);
  loaded->Find("ncclBroadcast", nccl.Broadcast);
  loaded->Find("ncclGather", nccl.Gather);
  // An old library is better described by its version than by the functions that it lacks.
  if (nccl.GetVersion != nullptr) {
    if (nccl.GetVersion(&nccl.version) != ncclSuccess) nccl.version = 0;
    if (nccl.version < NCCL_VERSION_CODE || nccl.version / 10000 != NCCL_MAJOR)
      return CannotCommunicate(
          device, absl::StrCat(loaded->file(), " has version ", NcclVersionText(nccl.version),
                               ", and this psd needs ", NcclVersionText(NCCL_VERSION_CODE),
                               " or a newer ", NCCL_MAJOR, ".x"));
  }
  if (!loaded->missing().empty())
    return CannotCommunicate(device,
                             absl::StrCat(loaded->file(), " has no function ", loaded->missing()));
  return nccl;
}

}  // namespace psd::cuda
