#include "core/base/system_refusal.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Limit(__rlimit_resource resource, const char* unit = "") {
  rlimit limit = {};
  EXPECT_EQ(getrlimit(resource, &limit), 0);
  return limit.rlim_cur == RLIM_INFINITY ? "none" : absl::StrCat(limit.rlim_cur, unit);
}

struct Refusal {
  const char* name;
  int error;
  std::string limit;   // as the text names it
  const char* remedy;  // as the text begins it
};
void PrintTo(const Refusal& refusal, std::ostream* out) {
  *out << refusal.name;
}

class SystemRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(SystemRefusalTest, NamesTheObjectTheReasonTheLimitAndTheRemedy) {
  const Refusal& refusal = GetParam();
  const absl::Status status = SystemRefusal("4096 bytes for a link", refusal.error);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(absl::StrCat("the system refuses 4096 bytes for a link: ",
                                            std::strerror(refusal.error), "; limit: ")),
                    HasSubstr(refusal.limit),
                    EndsWith(absl::StrCat("; ", refusal.remedy,
                                          ", or turn shared memory off (shared_memory: false)"))));
  EXPECT_THAT(GetDetail(status)->remedy, StartsWith(refusal.remedy));
}

Refusal Descriptors(const char* name, int error) {
  return {name, error,
          absl::StrCat("descriptors of this process: ", Limit(RLIMIT_NOFILE), " (RLIMIT_NOFILE)"),
          "raise the limit (LimitNOFILE, ulimit -n)"};
}
Refusal Memory(const char* name, int error) {
  return {name, error,
          absl::StrCat("address space of this process: ", Limit(RLIMIT_AS, " bytes"),
                       " (RLIMIT_AS); memory of its control group (memory.max); mappings "
                       "(vm.max_map_count); watched sockets (fs.epoll.max_user_watches)"),
          "raise the one that is reached"};
}
Refusal Profile(const char* name, int error) {
  return {name, error, "the system calls that a container allows (its seccomp profile)",
          "allow memfd_create and fcntl(F_ADD_SEALS)"};
}

INSTANTIATE_TEST_SUITE_P(
    Errors, SystemRefusalTest,
    testing::Values(Descriptors("EMFILE", EMFILE), Descriptors("ETOOMANYREFS", ETOOMANYREFS),
                    Refusal{"ENFILE", ENFILE, "open files of the machine (fs.file-max)",
                            "raise the limit (sysctl fs.file-max)"},
                    Refusal{"EFBIG", EFBIG,
                            absl::StrCat("bytes of a file, which count for shared memory, too: ",
                                         Limit(RLIMIT_FSIZE), " (RLIMIT_FSIZE)"),
                            "raise the limit (LimitFSIZE, ulimit -f)"},
                    Memory("ENOMEM", ENOMEM), Memory("ENOSPC", ENOSPC), Memory("EDQUOT", EDQUOT),
                    Memory("ENOBUFS", ENOBUFS), Profile("EPERM", EPERM), Profile("EACCES", EACCES),
                    Profile("ENOSYS", ENOSYS),
                    Refusal{"EXDEV", EXDEV, "none that psd knows", "see the reason"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace psd
