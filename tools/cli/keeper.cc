#include "tools/cli/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace psd::cli {
namespace {

// Reads the groups to watch (positive) and to forget (negative) until the writer is gone, then
// kills those that are left.
[[noreturn]] void Keep(int pipe) {
  ::setpgid(0, 0);  // a Ctrl-C at the terminal is not for this process
  for (int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, SIG_IGN);
  // Closes everything that somebody may wait for, such as the standard output.
  constexpr int kPipe = 3;
  const int nothing = ::open("/dev/null", O_RDWR);
  for (int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, standard);
  if (pipe != kPipe) ::dup2(pipe, kPipe);
  ::close_range(kPipe + 1, ~0U, 0);
  std::set<pid_t> groups;
  pid_t group = 0;
  for (;;) {
    const ssize_t got = ::read(kPipe, &group, sizeof(group));
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof(group))) break;
    if (group > 0) {
      groups.insert(group);
    } else {
      groups.erase(-group);
    }
  }
  for (pid_t left : groups) ::kill(-left, SIGKILL);
  ::_exit(0);
}

absl::Status Refused(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Refused("pipe");
  const pid_t pid = ::fork();
  if (pid < 0) {
    const absl::Status refused = Refused("fork");
    for (int end : ends) ::close(end);
    return refused;
  }
  if (pid == 0) {
    ::close(ends[1]);
    Keep(ends[0]);
  }
  ::close(ends[0]);
  return std::unique_ptr<Keeper>(new Keeper(pid, ends[1]));
}

Keeper::~Keeper() {
  ::close(pipe_);
  ::waitpid(pid_, nullptr, 0);
}

void Keeper::Tell(pid_t group) {
  // A small write to a pipe is never split. It fails only if the keeper was killed. Then nothing is
  // watched, which is no reason to stop the job.
  while (::write(pipe_, &group, sizeof(group)) < 0 && errno == EINTR) {
  }
}

}  // namespace psd::cli
