#include "core/carrier/descriptor_reserve.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"

namespace psd::carrier {
namespace {

rlim_t Reserve(rlim_t limit) {
  return std::min<rlim_t>(64, limit / 8);
}

}  // namespace

rlim_t DescriptorLimit() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

absl::Status CheckDescriptor(int fd, rlim_t limit) {
  // A new descriptor gets the lowest free number, so about `fd` descriptors are in use.
  if (limit == RLIM_INFINITY || static_cast<rlim_t>(fd) < limit - Reserve(limit)) {
    return absl::OkStatus();
  }
  return WithRemedy(absl::ResourceExhaustedError(
                        absl::StrCat(fd, " of ", limit,
                                     " file descriptors are in use, the rest is for files and for "
                                     "connections of this worker's own")),
                    "raise the limit (LimitNOFILE, ulimit -n)");
}

size_t UnheardBound(rlim_t limit) {
  constexpr rlim_t kLeast = 16, kMost = 1024;
  return std::clamp((limit - Reserve(limit)) / 4, kLeast, kMost);
}

}  // namespace psd::carrier
