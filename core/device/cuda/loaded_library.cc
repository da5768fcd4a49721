#include "core/device/cuda/loaded_library.h"

#include <dlfcn.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace psd::cuda {

absl::StatusOr<LoadedLibrary> LoadedLibrary::Load(const std::string& library,
                                                  absl::string_view name) {
  std::vector<std::string> files = {library};
  if (library.empty()) files = {std::string(name), absl::StrCat("/usr/local/cuda/lib64/", name)};
  std::vector<std::string> failures;  // each names its file
  for (std::string& file : files) {
    void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return LoadedLibrary(handle, std::move(file));
    failures.emplace_back(dlerror());
  }
  return absl::NotFoundError(absl::StrJoin(failures, "; "));
}

void* LoadedLibrary::Address(const char* name) {
  void* const address = dlsym(handle_, name);
  if (address == nullptr && missing_.empty()) missing_ = name;
  return address;
}

}  // namespace psd::cuda
