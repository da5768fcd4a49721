#pragma once

// Daemons and trainers as processes of their own, to be killed, stopped and started again.

#include <sys/types.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "proto/psd/v1/status.pb.h"

namespace psd::crash {

// Bounds that only a hang reaches, whatever else the machine does.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// True as soon as `condition` holds, false when it has not for `kPatience`.
bool Eventually(const std::function<bool()>& condition);

// A child. Its standard output is read line by line; standard error is the test's own. Killed with
// its handle, or with the test. Confined to the thread that made it.
class Process {
 public:
  // `arguments[0]` is the program, as a path from the root of the runfiles.
  explicit Process(const std::vector<std::string>& arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The next line that starts with `prefix`, without the prefix; earlier lines are skipped. Fails
  // the test and returns "" when the child ends, or does not say it for `kPatience`.
  std::string WaitForLine(absl::string_view prefix);

  // SIGKILL; returns when the process is gone.
  void Kill();
  // SIGTERM; returns the exit code when the process has ended, -1 if a signal ended it.
  int Terminate();
  // SIGSTOP and SIGCONT; return when the process is stopped, or told to go on.
  void Stop();
  void Continue();
  bool running() const { return pid_ > 0; }
  // Its number; 0 once it was killed or terminated.
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int output_ = -1;
  std::string unread_;
};

struct DaemonOptions {
  std::string name = "owner0";
  std::string listen = "127.0.0.1:0";
  std::string registrar{};  // "name=address"; empty: itself
  absl::Duration lease = absl::Seconds(10);
  std::string checkpoint_root{};      // empty: none
  std::string memory_budget = "0";    // as the daemon's flag
  std::vector<std::string> runner{};  // a command that starts the command line behind it; or empty
};

// A psd that is ready.
class Daemon {
 public:
  explicit Daemon(DaemonOptions options = {});

  OwnerAddress address() const { return {options_.name, options_.listen}; }
  // For DaemonOptions::registrar.
  std::string AsRegistrar() const { return options_.name + "=" + options_.listen; }
  Process& process() { return *process_; }
  const Process& process() const { return *process_; }
  // Kills it, if it still runs, and starts it again under its name and address.
  void Restart();

 private:
  void Start();

  DaemonOptions options_;
  std::unique_ptr<Process> process_;
};

// What trainer_main does in a loop; each begins with a line of that name.
enum class Phase { kPull, kBackward, kStep };
std::string PhaseName(Phase phase);

// trainer_main as a process. See there for `mode`.
std::unique_ptr<Process> StartTrainerProcess(const std::string& name, const std::string& mode,
                                             const std::vector<OwnerAddress>& owners);

// What `owner` says of itself, asked by `asker`.
absl::StatusOr<v1::WorkerStatus> StatusOf(Worker& asker, const std::string& owner);
// Steps that the optimizer called `name` has accepted; 0 if there is none.
uint64_t StepsOf(const v1::WorkerStatus& status, const std::string& name);
// Null if the owner knows no such worker.
const v1::PeerState* PeerOf(const v1::WorkerStatus& status, const std::string& name);

// What sessions hold on an owner, and what its values take.
struct Holdings {
  uint64_t forks = 0;
  uint64_t anonymous_values = 0;
  uint64_t contexts = 0;
  uint64_t old_versions_pinned = 0;
  uint64_t sessions = 0;
  uint64_t used_bytes = 0;

  friend bool operator==(const Holdings& a, const Holdings& b) {
    return a.forks == b.forks && a.anonymous_values == b.anonymous_values &&
           a.contexts == b.contexts && a.old_versions_pinned == b.old_versions_pinned &&
           a.sessions == b.sessions && a.used_bytes == b.used_bytes;
  }
};
Holdings HoldingsOf(const v1::WorkerStatus& status);
std::ostream& operator<<(std::ostream& out, const Holdings& holdings);

}  // namespace psd::crash
