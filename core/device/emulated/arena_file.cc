#include "core/device/emulated/arena_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/aligned_mapping.h"
#include "core/base/remedy.h"

namespace psd::emulated {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// More than the arena of any device takes (EmulatedDevice::Create).
constexpr uint64_t kMostBytes = uint64_t{4} << 40;

absl::Status NoArena(absl::string_view device, absl::string_view what) {
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(
          device, " cannot map memory of another process: the passed descriptor ", what)),
      "pass the one that Descriptor() of an emulated device gives");
}

}  // namespace

absl::StatusOr<UniqueFd> MakeArenaFile(const std::string& device, size_t bytes) {
  UniqueFd file(memfd_create(device.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.valid() && ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 &&
      fcntl(file.get(), F_ADD_SEALS, kSeals) == 0) {
    return file;
  }
  return WithRemedy(
      absl::ResourceExhaustedError(absl::StrCat("the system has no memory file of ", bytes,
                                                " bytes for ", device, ": ", std::strerror(errno))),
      "lower the device's budget or its number of blocks, or raise the limit of open files");
}

absl::StatusOr<size_t> CheckArenaFile(absl::string_view device, const UniqueFd& file) {
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0)
    return NoArena(device, absl::StrCat("is no memory file that can be sealed: F_GET_SEALS: ",
                                        std::strerror(errno)));
  if ((seals & kSeals) != kSeals)
    return NoArena(device,
                   absl::StrCat("has the seals ", seals, ", and ", kSeals,
                                " (against shrinking, growing and other seals) are needed"));
  if ((fcntl(file.get(), F_GETFL) & O_ACCMODE) == O_WRONLY)
    return NoArena(device, "is not open for reading");
  struct statfs system = {};
  if (fstatfs(file.get(), &system) != 0 || system.f_type != TMPFS_MAGIC)
    return NoArena(device, "is a file of huge pages, which may need other addresses");
  struct stat status = {};
  if (fstat(file.get(), &status) != 0)
    return NoArena(device, absl::StrCat("has no size: ", std::strerror(errno)));
  const auto bytes = static_cast<uint64_t>(status.st_size);
  if (bytes < 2 * kPageBytes || bytes > kMostBytes || bytes % kPageBytes != 0)
    return NoArena(
        device, absl::StrCat("has ", bytes, " bytes; whole pages of ", kPageBytes, " bytes, and ",
                             2 * kPageBytes, " to ", kMostBytes, " bytes, are needed"));
  return static_cast<size_t>(bytes);
}

}  // namespace psd::emulated
