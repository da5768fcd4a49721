#include "tools/cli/psd_program.h"

#include <unistd.h>

#include <climits>

namespace psd::cli {

std::string FindPsd() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0 || length == sizeof(path)) return "psd";
  std::string folder(path, static_cast<size_t>(length));
  folder.resize(folder.rfind('/') + 1);
  const std::string beside = folder + "psd";
  return ::access(beside.c_str(), X_OK) == 0 ? beside : "psd";
}

}  // namespace psd::cli
