#include "tools/cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::cli {
namespace {

constexpr int kExitNotStarted = 127;

// The two ends of a pipe, which are closed at the end of the scope unless they are released.
class Pipe {
 public:
  Pipe() = default;
  ~Pipe() {
    for (int end : ends_)
      if (end >= 0) ::close(end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  absl::Status Open() {
    if (::pipe2(ends_, O_CLOEXEC) == 0) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno)));
  }
  int reads() const { return ends_[0]; }
  int writes() const { return ends_[1]; }
  void CloseWrites() {
    ::close(ends_[1]);
    ends_[1] = -1;
  }
  int ReleaseReads() { return std::exchange(ends_[0], -1); }

 private:
  int ends_[2] = {-1, -1};
};

void SetEnvironment(const ChildSpec& spec) {
  for (const auto& [name, value] : spec.environment) {
    if (value.has_value()) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
}

// Resets the signals to those of a program that was started from a shell.
void ResetSignals() {
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Replaces the new process by the program. Returns only if that fails, with errno set.
void Become(const ChildSpec& spec, pid_t parent, const Pipe& output, const Pipe& errors) {
  ::setpgid(0, 0);
  // The parent may have died before prctl was called.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) return;
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int written = spec.silent ? nothing : output.writes();
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 || ::dup2(written, STDOUT_FILENO) < 0 ||
      ::dup2(errors.writes(), STDERR_FILENO) < 0)
    return;
  if (spec.kept_descriptor >= 0) ::fcntl(spec.kept_descriptor, F_SETFD, 0);
  SetEnvironment(spec);
  ResetSignals();
  std::vector<char*> arguments;
  for (const std::string& word : spec.command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
}

absl::Status NotStarted(const std::string& program, int error) {
  const std::string text = absl::StrCat("cannot start ", program, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == ENOMEM || error == EAGAIN || error == EMFILE || error == ENFILE)
    return absl::ResourceExhaustedError(text);
  return absl::PermissionDeniedError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(const ChildSpec& spec) {
  Pipe output, errors, failure;
  for (Pipe* pipe : {&output, &errors, &failure}) PSD_RETURN_IF_ERROR(pipe->Open());
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return NotStarted(spec.command[0], errno);
  if (pid == 0) {
    Become(spec, parent, output, errors);
    const int error = errno;
    const ssize_t told = ::write(failure.writes(), &error, sizeof(error));
    ::_exit(told > 0 ? kExitNotStarted : kExitNotStarted + 1);
  }
  ::setpgid(pid, pid);  // the child does it too, and either may come first
  for (Pipe* pipe : {&output, &errors, &failure}) pipe->CloseWrites();
  int error = 0;
  ssize_t got = 0;
  do {  // the pipe closes when the program has been executed
    got = ::read(failure.reads(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    ::waitpid(pid, nullptr, 0);
    return NotStarted(spec.command[0], error);
  }
  for (const Pipe* pipe : {&output, &errors}) ::fcntl(pipe->reads(), F_SETFL, O_NONBLOCK);
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(pid, output.ReleaseReads(), errors.ReleaseReads()));
}

ChildProcess::~ChildProcess() {
  if (!reaped_) {
    Signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(output_);
  ::close(errors_);
}

void ChildProcess::Signal(int number) {
  if (!reaped_) ::kill(-pid_, number);
}

bool ChildProcess::EndGroup() {
  if (reaped_) return false;
  siginfo_t info = {};
  // The process stays in the process table, so that no other process can get its number.
  const int asked = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  if (asked != 0 || info.si_pid == 0) return false;
  Signal(SIGKILL);
  return true;
}

std::optional<int> ChildProcess::Reap() {
  if (!EndGroup()) return std::nullopt;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  reaped_ = true;
  return status;
}

}  // namespace psd::cli
