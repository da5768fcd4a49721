// psctl check: checks a configuration file by running psd itself, so that both always agree.

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/cli/command.h"
#include "tools/cli/psd_program.h"

namespace psd::cli {
absl::Status RunCheck(const Options&, const std::vector<std::string>& arguments) {
  const std::string psd = FindPsd();
  const pid_t child = ::fork();
  if (child < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  if (child == 0) {
    ::execlp(psd.c_str(), psd.c_str(), "--check_config", "--config", arguments[0].c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == 0) return absl::OkStatus();
  if (code == 127)
    return absl::NotFoundError("psd is neither beside psctl nor on PATH; it does the checking");
  return absl::FailedPreconditionError(absl::StrCat(arguments[0], " was refused"));
}

}  // namespace psd::cli
