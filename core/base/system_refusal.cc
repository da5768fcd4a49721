#include "core/base/system_refusal.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"

namespace psd {
namespace {

std::string SoftLimit(__rlimit_resource resource, absl::string_view unit = "") {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0) return "unknown";
  return limit.rlim_cur == RLIM_INFINITY ? "none" : absl::StrCat(limit.rlim_cur, unit);
}

struct Cause {
  std::string limit;
  std::string remedy;
};

Cause CauseOf(int error) {
  switch (error) {
    case EMFILE:
    case ETOOMANYREFS:  // descriptors that were passed and not received yet count by user
      return {absl::StrCat("file descriptors of this process: ", SoftLimit(RLIMIT_NOFILE),
                           " (RLIMIT_NOFILE)"),
              "raise the limit (LimitNOFILE, ulimit -n)"};
    case ENFILE:
      return {"open files of the machine (fs.file-max)", "raise the limit (sysctl fs.file-max)"};
    case EFBIG:
      return {absl::StrCat("bytes of a file, which count for shared memory, too: ",
                           SoftLimit(RLIMIT_FSIZE), " (RLIMIT_FSIZE)"),
              "raise the limit (LimitFSIZE, ulimit -f)"};
    case ENOSPC:
    case ENOMEM:
    case EDQUOT:
    case ENOBUFS:
      return {absl::StrCat("address space of this process: ", SoftLimit(RLIMIT_AS, " bytes"),
                           " (RLIMIT_AS); memory of its control group (memory.max); mappings "
                           "(vm.max_map_count); watched sockets (fs.epoll.max_user_watches)"),
              "raise the one that is reached"};
    case EPERM:
    case EACCES:
    case ENOSYS:
      return {"the system calls that a container allows (its seccomp profile)",
              "allow memfd_create and fcntl(F_ADD_SEALS)"};
    default:
      return {"none that psd knows", "see the reason"};
  }
}

}  // namespace

absl::Status SystemRefusal(absl::string_view what, int error) {
  const Cause cause = CauseOf(error);
  return WithRemedy(
      absl::ResourceExhaustedError(absl::StrCat("the system refuses ", what, ": ",
                                                std::strerror(error), "; limit: ", cause.limit)),
      absl::StrCat(cause.remedy, ", or turn shared memory off (shared_memory: false)"));
}

}  // namespace psd
