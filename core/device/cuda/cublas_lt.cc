#include "core/device/cuda/cublas_lt.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/device/cuda/loaded_library.h"

namespace psd::cuda {
namespace {

absl::Status CannotMultiply(absl::string_view device, absl::string_view why) {
  return WithRemedy(absl::FailedPreconditionError(
                        absl::StrCat(device, " cannot multiply matrices without cublasLt: ", why)),
                    absl::StrCat("install cuBLAS of CUDA ", CUBLAS_VER_MAJOR,
                                 ", or start the worker with its folder in LD_LIBRARY_PATH"));
}

std::string VersionText(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

absl::StatusOr<CublasLt> LoadCublasLt(absl::string_view device, const std::string& library) {
  absl::StatusOr<LoadedLibrary> loaded =
      LoadedLibrary::Load(library, absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR));
  if (!loaded.ok()) return CannotMultiply(device, loaded.status().message());

  CublasLt lt = {};
  loaded->Find("cublasLtGetVersion", lt.GetVersion);
  loaded->Find("cublasLtGetStatusName", lt.GetStatusName);
  loaded->Find("cublasLtGetStatusString", lt.GetStatusString);
  loaded->Find("cublasLtCreate", lt.Create);
  loaded->Find("cublasLtDestroy", lt.Destroy);
  loaded->Find("cublasLtMatmulDescCreate", lt.MatmulDescCreate);
  loaded->Find("cublasLtMatmulDescDestroy", lt.MatmulDescDestroy);
  loaded->Find("cublasLtMatmulDescSetAttribute", lt.MatmulDescSetAttribute);
  loaded->Find("cublasLtMatrixLayoutCreate", lt.MatrixLayoutCreate);
  loaded->Find("cublasLtMatrixLayoutDestroy", lt.MatrixLayoutDestroy);
  loaded->Find("cublasLtMatmulPreferenceCreate", lt.MatmulPreferenceCreate);
  loaded->Find("cublasLtMatmulPreferenceDestroy", lt.MatmulPreferenceDestroy);
  loaded->Find("cublasLtMatmulPreferenceSetAttribute", lt.MatmulPreferenceSetAttribute);
  loaded->Find("cublasLtMatmulAlgoGetHeuristic", lt.MatmulAlgoGetHeuristic);
  loaded->Find("cublasLtMatmul", lt.Matmul);
  if (!loaded->missing().empty())
    return CannotMultiply(device,
                          absl::StrCat(loaded->file(), " has no function ", loaded->missing()));
  const size_t version = lt.GetVersion();
  if (version / 10000 != CUBLAS_VER_MAJOR)
    return CannotMultiply(device,
                          absl::StrCat(loaded->file(), " has version ", VersionText(version),
                                       ", and this psd needs ", CUBLAS_VER_MAJOR, ".x"));
  return lt;
}

}  // namespace psd::cuda
