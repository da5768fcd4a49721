#include "examples/files/read_file.h"

#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"

namespace psd::examples {
namespace {

absl::Status SystemError(const std::string& path, absl::string_view remedy) {
  const int error = errno;
  return WithRemedy(absl::ErrnoToStatus(error, absl::StrCat(path, " cannot be read")), remedy);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes,
                                     absl::string_view remedy) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (file == nullptr) return SystemError(path, remedy);
  std::string bytes;
  char block[1 << 16];
  size_t got = 0;
  while ((got = std::fread(block, 1, sizeof block, file.get())) > 0) {
    bytes.append(block, got);
    if (bytes.size() > max_bytes) {
      return WithRemedy(absl::ResourceExhaustedError(absl::StrCat(
                            path, " is larger than the limit of ", max_bytes, " bytes")),
                        remedy);
    }
  }
  if (std::ferror(file.get()) != 0) return SystemError(path, remedy);
  return bytes;
}

}  // namespace psd::examples
