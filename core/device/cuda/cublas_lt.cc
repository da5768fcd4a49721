#include "core/device/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <cstddef>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::cuda {
namespace {

absl::Status CannotMultiply(absl::string_view device, absl::string_view why) {
  return WithRemedy(absl::FailedPreconditionError(
                        absl::StrCat(device, " cannot multiply matrices without cublasLt: ", why)),
                    absl::StrCat("install cuBLAS of CUDA ", CUBLAS_VER_MAJOR,
                                 ", or start the worker with its folder in LD_LIBRARY_PATH"));
}

std::vector<std::string> FilesFor(const std::string& library) {
  if (!library.empty()) return {library};
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  return {name, absl::StrCat("/usr/local/cuda/lib64/", name)};
}

std::string VersionText(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

absl::StatusOr<CublasLt> LoadCublasLt(absl::string_view device, const std::string& library) {
  void* loaded = nullptr;
  std::string file;
  std::vector<std::string> failures;  // each names its file
  for (const std::string& each : FilesFor(library)) {
    loaded = dlopen(each.c_str(), RTLD_NOW | RTLD_LOCAL);
    file = each;
    if (loaded != nullptr) break;
    failures.emplace_back(dlerror());
  }
  if (loaded == nullptr) return CannotMultiply(device, absl::StrJoin(failures, "; "));

  CublasLt lt = {};
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    void* const address = dlsym(loaded, name);
    if (address == nullptr && missing.empty()) missing = name;
    function = reinterpret_cast<std::decay_t<decltype(function)>>(address);
  };
  find("cublasLtGetVersion", lt.GetVersion);
  find("cublasLtGetStatusName", lt.GetStatusName);
  find("cublasLtGetStatusString", lt.GetStatusString);
  find("cublasLtCreate", lt.Create);
  find("cublasLtDestroy", lt.Destroy);
  find("cublasLtMatmulDescCreate", lt.MatmulDescCreate);
  find("cublasLtMatmulDescDestroy", lt.MatmulDescDestroy);
  find("cublasLtMatmulDescSetAttribute", lt.MatmulDescSetAttribute);
  find("cublasLtMatrixLayoutCreate", lt.MatrixLayoutCreate);
  find("cublasLtMatrixLayoutDestroy", lt.MatrixLayoutDestroy);
  find("cublasLtMatmulPreferenceCreate", lt.MatmulPreferenceCreate);
  find("cublasLtMatmulPreferenceDestroy", lt.MatmulPreferenceDestroy);
  find("cublasLtMatmulPreferenceSetAttribute", lt.MatmulPreferenceSetAttribute);
  find("cublasLtMatmulAlgoGetHeuristic", lt.MatmulAlgoGetHeuristic);
  find("cublasLtMatmul", lt.Matmul);
  if (!missing.empty())
    return CannotMultiply(device, absl::StrCat(file, " has no function ", missing));
  const size_t version = lt.GetVersion();
  if (version / 10000 != CUBLAS_VER_MAJOR)
    return CannotMultiply(device, absl::StrCat(file, " has version ", VersionText(version),
                                               ", and this psd needs ", CUBLAS_VER_MAJOR, ".x"));
  return lt;
}

}  // namespace psd::cuda
