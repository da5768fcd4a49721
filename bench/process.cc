#include "bench/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace psd::bench {
namespace {

constexpr absl::Duration kStopTimeout = absl::Seconds(10);

absl::Status SystemError(absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

absl::StatusOr<Pipe> NewPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe");
  return Pipe{ends[0], ends[1]};
}

// Runs in the child, between fork and exec, so it makes only system calls.
[[noreturn]] void Become(char* const* arguments, int in, int out, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the prctl
  setpgid(0, 0);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  execv(arguments[0], arguments);
  _exit(127);
}

bool WaitFor(pid_t pid, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (waitpid(pid, nullptr, WNOHANG) == 0) {
    if (absl::Now() > until) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const std::vector<std::string>& command) {
  if (access(command[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(command[0], ": ", std::strerror(errno)));
  }
  const absl::StatusOr<Pipe> to_child = NewPipe();
  if (!to_child.ok()) return to_child.status();
  const absl::StatusOr<Pipe> from_child = NewPipe();
  if (!from_child.ok()) return from_child.status();
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(arguments.data(), to_child->read_end, from_child->write_end, parent);
  if (pid > 0) setpgid(pid, pid);  // as the child does; whoever is first
  close(to_child->read_end);
  close(from_child->write_end);
  std::unique_ptr<Process> process(
      new Process(command[0], pid, to_child->write_end, from_child->read_end));
  if (pid < 0) return SystemError("fork");
  return process;
}

Process::Process(std::string name, pid_t pid, int in, int out)
    : name_(std::move(name)), pid_(pid), in_(in), out_(out) {}

Process::~Process() {
  close(in_);
  close(out_);
  if (pid_ <= 0) return;
  kill(pid_, SIGTERM);
  Resume();
  if (WaitFor(pid_, kStopTimeout)) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Process::Pause() const {
  kill(-pid_, SIGSTOP);
}

void Process::Resume() const {
  kill(-pid_, SIGCONT);
}

absl::Status Process::WriteLine(absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  if (write(in_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return absl::UnavailableError(absl::StrCat(name_, " takes no input: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Process::ReadLine(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  while (true) {
    const size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    pollfd ready = {out_, POLLIN, 0};
    const auto left_ms = static_cast<int>(absl::ToInt64Milliseconds(until - absl::Now()));
    if (left_ms <= 0 || poll(&ready, 1, left_ms) == 0) {
      return absl::DeadlineExceededError(
          absl::StrCat(name_, " said nothing for ", absl::FormatDuration(timeout)));
    }
    char bytes[4096];
    const ssize_t size = read(out_, bytes, sizeof(bytes));
    if (size <= 0) return absl::UnavailableError(absl::StrCat(name_, " has ended"));
    pending_.append(bytes, static_cast<size_t>(size));
  }
}

absl::StatusOr<double> Process::CpuSeconds() const {
  clockid_t clock;
  timespec used;
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &used) != 0) {
    return SystemError(absl::StrCat("CPU time of ", name_));
  }
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

absl::StatusOr<size_t> Process::ResidentBytes() const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/status"));
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "VmRSS:") || !absl::ConsumeSuffix(&rest, "kB")) continue;
    size_t kilobytes = 0;
    if (absl::SimpleAtoi(rest, &kilobytes)) return kilobytes << 10;
  }
  return absl::UnavailableError(absl::StrCat(name_, ": no VmRSS in /proc"));
}

}  // namespace psd::bench
