#include "tests/crash/process_world.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/runtime_of.h"
#include "core/base/status.h"
#include "core/rpc/message_io.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "gtest/gtest.h"

namespace psd::crash {
namespace {

constexpr char kDaemon[] = "server/daemon/psd";
constexpr char kTrainer[] = "tests/crash/trainer_main";

// Runs between fork and exec, so it calls only functions that are safe there.
[[noreturn]] void BecomeProgram(char* const* arguments, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  execv(arguments[0], arguments);
  _exit(127);
}

// Moves the first line of `unread` to `line`. Returns false if there is no complete line.
bool TakeLine(std::string* unread, std::string* line) {
  const size_t end = unread->find('\n');
  if (end == std::string::npos) return false;
  *line = unread->substr(0, end);
  unread->erase(0, end + 1);
  return true;
}

// Appends output of the child to `unread`. Returns false at the end of the output, or if there is
// no output for kPatience.
bool ReadMore(int descriptor, std::string* unread) {
  pollfd waiting = {descriptor, POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) <= 0) return false;
  char bytes[4096];
  const ssize_t count = read(descriptor, bytes, sizeof(bytes));
  if (count > 0) unread->append(bytes, static_cast<size_t>(count));
  return count > 0;
}

std::string Joined(const std::vector<OwnerAddress>& owners) {
  std::string text;
  for (const OwnerAddress& owner : owners)
    absl::StrAppend(&text, text.empty() ? "" : ",", owner.name, "=", owner.address);
  return text;
}

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + kPatience;
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

// ---------------------------------------------------------------- processes

Process::Process(const std::vector<std::string>& arguments) {
  std::vector<char*> raw;
  for (const std::string& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    ADD_FAILURE() << "no pipe for " << arguments[0];
    return;
  }
  output_ = ends[0];
  pid_ = fork();
  if (pid_ == 0) BecomeProgram(raw.data(), ends[1]);
  close(ends[1]);
}

Process::~Process() {
  Kill();
  if (output_ >= 0) close(output_);
}

std::string Process::WaitForLine(absl::string_view prefix) {
  const absl::Time end = absl::Now() + kPatience;
  std::string line;
  std::vector<std::string> errors;
  do {
    while (TakeLine(&unread_, &line)) {
      absl::string_view rest = line;
      if (absl::ConsumePrefix(&rest, prefix)) return std::string(rest);
      if (absl::StartsWith(line, "error")) errors.push_back(line);
    }
  } while (absl::Now() < end && ReadMore(output_, &unread_));
  ADD_FAILURE() << "process " << pid_ << " did not say '" << prefix << "'; last: " << line
                << "\nerrors:\n"
                << absl::StrJoin(errors, "\n");
  return "";
}

int Process::CountLines(absl::string_view prefix) {
  pollfd waiting = {output_, POLLIN, 0};
  while (poll(&waiting, 1, /*timeout=*/0) > 0 && ReadMore(output_, &unread_)) {
  }
  int count = 0;
  for (std::string line; TakeLine(&unread_, &line);)
    count += absl::StartsWith(line, prefix) ? 1 : 0;
  return count;
}

void Process::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
}

int Process::Terminate() {
  PSD_CHECK(pid_ > 0, "the process has ended already");
  kill(pid_, SIGTERM);
  int state = 0;
  while (waitpid(pid_, &state, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

void Process::Stop() {
  PSD_CHECK(pid_ > 0, "the process has ended already");
  kill(pid_, SIGSTOP);
  AwaitStop();
}

void Process::AwaitStop() {
  int state = 0;
  const bool changed =
      Eventually([&] { return waitpid(pid_, &state, WUNTRACED | WNOHANG) == pid_; });
  EXPECT_TRUE(changed && WIFSTOPPED(state)) << "process " << pid_ << " did not stop";
  if (changed && !WIFSTOPPED(state)) pid_ = 0;  // it has ended
}

void Process::Continue() {
  PSD_CHECK(pid_ > 0, "the process has ended already");
  kill(pid_, SIGCONT);
}

Daemon::Daemon(DaemonOptions options) : options_(std::move(options)) {
  Start();
}

void Daemon::Start() {
  std::vector<std::string> command = options_.runner;
  command.insert(command.end(),
                 {kDaemon, "--name", options_.name, "--listen", options_.listen, "--registrar",
                  options_.registrar, "--lease", absl::FormatDuration(options_.lease),
                  "--checkpoint_root", options_.checkpoint_root, "--memory_budget",
                  options_.memory_budget, "--devices", options_.devices, "--log_level", "error"});
  if (options_.share_devices) command.push_back("--share_devices=true");
  process_ = std::make_unique<Process>(command);
  const std::string ready =
      process_->WaitForLine(absl::StrCat("psd ", options_.name, " ready at "));
  if (!ready.empty()) options_.listen = ready;
}

void Daemon::Restart() {
  process_ = nullptr;
  Start();
}

std::string PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kPull:
      return "pull";
    case Phase::kBackward:
      return "backward";
    case Phase::kStep:
      return "step";
  }
  return "";
}

std::unique_ptr<Process> StartTrainerProcess(const std::string& name, const std::string& mode,
                                             const std::vector<OwnerAddress>& owners) {
  return std::make_unique<Process>(std::vector<std::string>{kTrainer, name, mode, Joined(owners)});
}

// ---------------------------------------------------------------- status of an owner

absl::StatusOr<v1::WorkerStatus> StatusOf(Worker& asker, const std::string& owner) {
  rpc::Request request = rpc::PlainRequest("worker.status", v1::StatusRequest());
  rpc::Call call = RuntimeOf(asker).agent().StartCall(owner, std::move(request), {});
  const absl::StatusOr<rpc::Reply>& reply = call.reply().Wait();
  PSD_RETURN_IF_ERROR(reply);
  return rpc::ParseMessage<v1::WorkerStatus>(reply->payload.header, "worker.status");
}

uint64_t StepsOf(const v1::WorkerStatus& status, const std::string& name) {
  for (const v1::OptimizerState& optimizer : status.optimizers()) {
    if (optimizer.name() == name) return optimizer.steps();
  }
  return 0;
}

const v1::PeerState* PeerOf(const v1::WorkerStatus& status, const std::string& name) {
  for (const v1::PeerState& peer : status.peers()) {
    if (peer.name() == name) return &peer;
  }
  return nullptr;
}

Holdings HoldingsOf(const v1::WorkerStatus& status) {
  Holdings holdings;
  holdings.forks = status.references().forks();
  holdings.anonymous_values = status.references().anonymous_values();
  holdings.contexts = status.contexts_held();
  for (const v1::NamedValue& value : status.values())
    holdings.old_versions_pinned += value.old_versions_pinned();
  for (const v1::PeerState& peer : status.peers()) holdings.sessions += peer.epoch_here() != 0;
  holdings.used_bytes = status.memory().used_bytes();
  return holdings;
}

std::ostream& operator<<(std::ostream& out, const Holdings& holdings) {
  return out << holdings.forks << " forks, " << holdings.anonymous_values << " anonymous values, "
             << holdings.contexts << " contexts, " << holdings.old_versions_pinned
             << " old versions pinned, " << holdings.sessions << " sessions, "
             << holdings.used_bytes << " bytes";
}

}  // namespace psd::crash
