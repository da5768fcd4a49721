#pragma once

// Libraries of NVIDIA that psd does not link. A worker loads them when it first needs them.

#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::cuda {

// The library stays loaded until the process ends. A value.
class LoadedLibrary {
 public:
  // Loads the file `library`. If that is empty, looks for the file `name`, first where the system's
  // loader looks and then where NVIDIA's packages put it.
  // Errors: NOT_FOUND with what the loader says of each file.
  static absl::StatusOr<LoadedLibrary> Load(const std::string& library, absl::string_view name);

  const std::string& file() const { return file_; }
  // Sets `function`, a pointer, to the function called `name`; to null if the library has none.
  template <typename Function>
  void Find(const char* name, Function& function) {
    function = reinterpret_cast<std::decay_t<Function>>(Address(name));
  }
  // The first name that was not found; empty if all were.
  const std::string& missing() const { return missing_; }

 private:
  LoadedLibrary(void* handle, std::string file) : handle_(handle), file_(std::move(file)) {}
  void* Address(const char* name);

  void* handle_;
  std::string file_;
  std::string missing_;
};

}  // namespace psd::cuda
