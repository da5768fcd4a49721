#include "tools/cli/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "tools/cli/exit_code.h"

namespace psd::cli {
namespace {

constexpr char kRegistrarName[] = "registrar";
constexpr size_t kReadBytes = 65'536;
constexpr int kExitNotFound = 127;
constexpr int kExitNotExecutable = 126;

int ExitCodeOfWait(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitOfSignal + WTERMSIG(status);
}

std::string SignalName(int number) {
  const char* name = ::sigabbrev_np(number);
  return name == nullptr ? absl::StrCat("signal ", number) : absl::StrCat("SIG", name);
}

std::string DescribeEnd(int status) {
  if (WIFEXITED(status)) return absl::StrCat("exited with code ", WEXITSTATUS(status));
  return absl::StrCat("was killed by ", SignalName(WTERMSIG(status)));
}

bool IsSameFile(int a, int b) {
  struct stat of_a = {}, of_b = {};
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

bool IsIgnored(int number) {
  struct sigaction now = {};
  return ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

// Makes a descriptor that delivers the signals of the job. A signal that was ignored when this
// program started, as nohup does with SIGHUP, stays ignored.
int OpenSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (int number : {SIGINT, SIGTERM, SIGHUP})
    if (!IsIgnored(number)) sigaddset(&signals, number);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  return ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

}  // namespace

Launcher::Launcher(JobSpec spec)
    : spec_(std::move(spec)), output_(STDOUT_FILENO), errors_(STDERR_FILENO) {}

Launcher::~Launcher() {
  for (int descriptor : {signals_, address_pipe_})
    if (descriptor >= 0) ::close(descriptor);
}

absl::Status Launcher::Run() {
  absl::Status started = Prepare();
  if (started.ok()) started = spec_.owners.empty() ? StartRegistrar() : StartRanks();
  if (!started.ok()) Fail(started);
  while (Running()) Turn();
  if (stopped_by_ != 0) {
    return WithExitCode(absl::CancelledError(absl::StrCat("stopped by ", SignalName(stopped_by_))),
                        kExitOfSignal + stopped_by_);
  }
  return failure_;
}

// ---- start

absl::Status Launcher::Prepare() {
  // Makes sure that pipes do not get the numbers of the standard streams.
  int opened = 0;
  do {
    opened = ::open("/dev/null", O_RDWR);
  } while (opened >= 0 && opened <= STDERR_FILENO);
  ::close(opened);
  shared_output_ = IsSameFile(STDOUT_FILENO, STDERR_FILENO);
  signals_ = OpenSignals();
  if (signals_ < 0)
    return absl::ResourceExhaustedError(absl::StrCat("signalfd: ", std::strerror(errno)));
  PSD_ASSIGN_OR_RETURN(keeper_, Keeper::Start());
  return absl::OkStatus();
}

absl::Status Launcher::StartRegistrar() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno)));
  address_pipe_ = ends[0];
  auto registrar = std::make_unique<Process>();
  registrar->title = "the registrar";
  registrar->tag = "[registrar] ";
  registrar->is_registrar = true;
  registrar->spec.kept_descriptor = ends[1];
  registrar->spec.silent = true;  // the line that it prints is not part of the job's output
  registrar->spec.command = {spec_.psd,    "--registrar_only",   "--name",      kRegistrarName,
                             "--listen",   "127.0.0.1:0",        "--log_level", "error",
                             "--ready_fd", absl::StrCat(ends[1])};
  processes_.push_back(std::move(registrar));
  const absl::Status started = Start(*processes_.back());
  ::close(ends[1]);
  return WithRemedy(started,
                    "psctl runs the psd beside it or on PATH; name owners with --owner instead");
}

absl::Status Launcher::StartRanks() {
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    auto process = std::make_unique<Process>();
    process->title = absl::StrCat("rank ", rank);
    process->tag = absl::StrCat("[", rank, "] ");
    process->spec = SpecOfRank(rank);
    processes_.push_back(std::move(process));
    PSD_RETURN_IF_ERROR(Start(*processes_.back()));
  }
  return absl::OkStatus();
}

ChildSpec Launcher::SpecOfRank(int rank) const {
  const auto unless_empty = [](const std::string& text) {
    return text.empty() ? std::nullopt : std::optional<std::string>(text);
  };
  ChildSpec spec;
  spec.command = spec_.command;
  spec.environment = {{"PSD_NAME", absl::StrCat(spec_.name_prefix, rank)},
                      {"PSD_RANK", absl::StrCat(rank)},
                      {"PSD_GROUP_SIZE", absl::StrCat(spec_.ranks)},
                      {"PSD_OWNERS", unless_empty(spec_.owners)},
                      {"PSD_REGISTRAR", unless_empty(registrar_)}};
  return spec;
}

absl::Status Launcher::Start(Process& process) {
  auto child = ChildProcess::Start(process.spec);
  if (!child.ok()) {
    return WithExitCode(Annotate(child.status(), process.title),
                        absl::IsNotFound(child.status()) ? kExitNotFound : kExitNotExecutable);
  }
  process.child = *std::move(child);
  process.wait_status.reset();
  process.output = Stream{process.child->output(), TaggedLines(process.tag)};
  process.errors = Stream{process.child->errors(), TaggedLines(process.tag)};
  keeper_->Watch(process.child->pid());
  return absl::OkStatus();
}

// ---- the loop

bool Launcher::Running() const {
  const bool processes = std::any_of(processes_.begin(), processes_.end(),
                                     [](const auto& process) { return process->child != nullptr; });
  return processes || (!impatient_ && !(output_.empty() && errors_.empty()));
}

void Launcher::Turn() {
  std::vector<pollfd> awaited = Awaited();
  int wait_ms = -1;
  if (kill_at_.has_value() && *kill_at_ != absl::InfiniteFuture()) {
    const absl::Duration left = *kill_at_ - Clock::Steady().Now();
    wait_ms = static_cast<int>(std::max<int64_t>(absl::ToInt64Milliseconds(left) + 1, 0));
  }
  if (::poll(awaited.data(), awaited.size(), wait_ms) < 0 && errno != EINTR)
    Fail(absl::InternalError(absl::StrCat("poll: ", std::strerror(errno))));
  for (OutputSink* sink : {&output_, &errors_}) {
    for (const pollfd& ready : awaited)
      if (ready.fd == sink->descriptor() && ready.revents != 0 && !sink->empty()) sink->Write();
  }
  TakeSignals();
  ReadAddress();
  // Until it finds none: a rank may be killed just after it was looked at, and others that are
  // looked at later may have ended because it is lost.
  while (ReapAny()) {
  }
  // A rank that a signal killed comes before those that have ended meanwhile because it is lost.
  for (const bool killed : {true, false}) {
    for (size_t i = 0; i < processes_.size(); ++i)
      if (WasKilled(*processes_[i]) == killed) ReadFrom(*processes_[i]);
  }
  KillLate();
  EndRegistrarLast();
}

std::vector<pollfd> Launcher::Awaited() {
  std::vector<pollfd> awaited = {{signals_, POLLIN, 0}, {address_pipe_, POLLIN, 0}};
  for (OutputSink* sink : {&output_, &errors_})
    if (!sink->empty()) awaited.push_back({sink->descriptor(), POLLOUT, 0});
  for (const auto& process : processes_) {
    if (process->output.has_value() && !output().full())
      awaited.push_back({process->output->descriptor, POLLIN, 0});
    if (process->errors.has_value() && !errors_.full())
      awaited.push_back({process->errors->descriptor, POLLIN, 0});
  }
  return awaited;
}

void Launcher::TakeSignals() {
  signalfd_siginfo info;
  while (::read(signals_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;
    if (kill_at_.has_value()) {
      impatient_ = true;
      kill_at_ = Clock::Steady().Now();
      output_.Clear();
    } else {
      stopped_by_ = number;
      Say(absl::StrCat("psctl: ", SignalName(number), ": stopping the ranks\n"));
      Stop(number);
    }
  }
}

void Launcher::ReadAddress() {
  if (address_pipe_ < 0) return;
  char line[256];
  const ssize_t got = ::read(address_pipe_, line, sizeof(line));
  if (got < 0) return;  // nothing yet
  ::close(std::exchange(address_pipe_, -1));
  if (got == 0 || kill_at_.has_value()) return;  // the end of the registrar is noticed elsewhere
  std::string address(line, static_cast<size_t>(got));
  address.erase(std::find(address.begin(), address.end(), '\n'), address.end());
  registrar_ = absl::StrCat(kRegistrarName, "=", address);
  const absl::Status started = StartRanks();
  if (!started.ok()) Fail(started);
}

bool Launcher::ReapAny() {
  bool found = false;
  for (const auto& process : processes_) {
    if (process->child == nullptr || process->wait_status.has_value()) continue;
    if (!process->child->EndGroup()) continue;
    keeper_->Forget(process->child->pid());
    process->wait_status = process->child->Reap();
    found = true;
    // Everything that the process has written can be read now. Later bytes come from other
    // processes that hold the pipe open.
    for (std::optional<Stream>* stream : {&process->output, &process->errors})
      if (stream->has_value()) ::ioctl((*stream)->descriptor, FIONREAD, &(*stream)->left);
  }
  return found;
}

bool Launcher::WasKilled(const Process& process) {
  return process.wait_status.has_value() && WIFSIGNALED(*process.wait_status);
}

void Launcher::EndRegistrarLast() {
  const bool ranks_will_start = address_pipe_ >= 0 && !kill_at_.has_value();
  if (ranks_will_start || RunningRanks() != 0) return;
  // The registrar keeps nothing that an orderly stop would save, so it is killed.
  for (const auto& process : processes_)
    if (process->child != nullptr) process->child->Signal(SIGKILL);
}

int Launcher::RunningRanks() const {
  return static_cast<int>(std::count_if(
      processes_.begin(), processes_.end(),
      [](const auto& process) { return process->child != nullptr && !process->is_registrar; }));
}

// ---- output

void Launcher::ReadFrom(Process& process) {
  if (process.child == nullptr) return;
  const bool last = process.wait_status.has_value();
  ReadStream(last, output(), &process.output);
  ReadStream(last, errors_, &process.errors);
  if (last && !process.output.has_value() && !process.errors.has_value()) Ended(process);
}

void Launcher::ReadStream(bool last, OutputSink& sink, std::optional<Stream>* stream) {
  char bytes[kReadBytes];
  std::string whole;
  // After a second signal it drops output that is left, and waits for no reader.
  while (stream->has_value() && (impatient_ || !sink.full())) {
    const size_t most = last ? static_cast<size_t>((*stream)->left) : kReadBytes;
    const ssize_t got = ::read((*stream)->descriptor, bytes, std::min(most, kReadBytes));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && !last) break;
    whole.clear();
    if (got > 0) {
      (*stream)->lines.Add({bytes, static_cast<size_t>(got)}, &whole);
      if (last) (*stream)->left -= static_cast<int>(got);
    } else {  // closed, or all that was left has been read
      (*stream)->lines.End(&whole);
      stream->reset();
    }
    if (!impatient_) sink.Add(whole);
    if (!last) break;  // other processes get their turn
  }
}

// ---- ends

void Launcher::Ended(Process& process) {
  const int status = *process.wait_status;
  const std::string end =
      absl::StrCat(process.title, " (pid ", process.child->pid(), ") ", DescribeEnd(status));
  process.child.reset();
  if (kill_at_.has_value()) return;
  if (process.is_registrar) {
    if (RunningRanks() != 0 || registrar_.empty()) Fail(absl::UnavailableError(end));
    return;
  }
  if (ExitCodeOfWait(status) == 0) return;
  if (process.restarts == spec_.restarts) {
    const std::string tried =
        spec_.restarts == 0 ? "" : absl::StrCat(" after ", spec_.restarts, " restarts");
    return Fail(WithExitCode(absl::AbortedError(end + tried), ExitCodeOfWait(status)));
  }
  ++process.restarts;
  Say(absl::StrCat("psctl: ", end, "; restart ", process.restarts, " of ", spec_.restarts, "\n"));
  const absl::Status started = Start(process);
  if (!started.ok()) Fail(started);
}

void Launcher::Fail(absl::Status why) {
  if (!failure_.ok() || kill_at_.has_value()) return;
  failure_ = std::move(why);
  if (RunningRanks() != 0)
    Say(absl::StrCat("psctl: ", failure_.message(), "; stopping the others\n"));
  Stop(SIGTERM);
}

void Launcher::Stop(int number) {
  kill_at_ = Clock::Steady().Now() + spec_.grace;
  for (const auto& process : processes_)
    if (process->child != nullptr && !process->is_registrar) process->child->Signal(number);
}

void Launcher::KillLate() {
  if (!kill_at_.has_value() || Clock::Steady().Now() < *kill_at_) return;
  kill_at_ = absl::InfiniteFuture();
  for (const auto& process : processes_) {
    if (process->child == nullptr || process->is_registrar || process->wait_status.has_value())
      continue;
    Say(absl::StrCat("psctl: ", process->title, " (pid ", process->child->pid(),
                     ") has not stopped", impatient_ ? "" : " in time", "; killed\n"));
    process->child->Signal(SIGKILL);
  }
}

}  // namespace psd::cli
