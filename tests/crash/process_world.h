#pragma once

// Daemons and trainers as processes of their own, which a test can kill, stop and start again.

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

// The time after which a test takes a wait for a hang, even on a busy machine.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

// Returns true as soon as `condition` holds, and false if it does not hold within `kPatience`.
bool Eventually(const std::function<bool()>& condition);

// A child process. Its standard output is read line by line, and its standard error is that of the
// test. It is killed when the handle is destroyed or the test ends. Confined to the thread that
// created it.
class Process {
 public:
  // `arguments[0]` is the program, as a path from the root of the runfiles.
  explicit Process(const std::vector<std::string>& arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Skips lines up to the next one that starts with `prefix`, and returns that line without the
  // prefix. Fails the test and returns "" if the child ends first, or does not print such a line
  // within `kPatience`.
  std::string WaitForLine(absl::string_view prefix);
  // Reads what the child has said since then, without waiting, and returns how many of these lines
  // start with `prefix`.
  int CountLines(absl::string_view prefix);

  // Sends SIGKILL and returns when the process is gone.
  void Kill();
  // Sends SIGTERM, waits for the end of the process and returns its exit code, or -1 if a signal
  // ended it.
  int Terminate();
  // Send SIGSTOP and SIGCONT. Stop() returns when the process is stopped.
  void Stop();
  void Continue();
  // Returns when the process has stopped itself. Fails the test if it ends instead, or does not
  // stop within `kPatience`.
  void AwaitStop();
  bool running() const { return pid_ > 0; }
  // The process id; 0 once a function above has found the process ended.
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int output_ = -1;
  std::string unread_;
};

struct DaemonOptions {
  std::string name = "owner0";
  std::string listen = "127.0.0.1:0";
  std::string registrar{};  // "name=address"; if empty, the daemon is the registrar
  absl::Duration lease = absl::Seconds(10);
  std::string checkpoint_root{};    // empty: none
  std::string memory_budget = "0";  // as the daemon's flag
  std::string devices{};            // as the daemon's flag
  bool share_devices = false;
  std::vector<std::string> runner{};  // a command in front of the daemon's command line; or empty
};

// A psd daemon that is ready when the constructor returns.
class Daemon {
 public:
  explicit Daemon(DaemonOptions options = {});

  OwnerAddress address() const { return {options_.name, options_.listen}; }
  // The value of DaemonOptions::registrar with which other daemons use this one as their registrar.
  std::string AsRegistrar() const { return options_.name + "=" + options_.listen; }
  Process& process() { return *process_; }
  const Process& process() const { return *process_; }
  // Kills the daemon, if it is still running, and starts it again under its name and address.
  void Restart();

 private:
  void Start();

  DaemonOptions options_;
  std::unique_ptr<Process> process_;
};

// The phases of a train step in trainer_main, which prints the name of each before it begins.
enum class Phase { kPull, kBackward, kStep };
std::string PhaseName(Phase phase);

// Starts trainer_main. `mode` is described in trainer_main.cc.
std::unique_ptr<Process> StartTrainerProcess(const std::string& name, const std::string& mode,
                                             const std::vector<OwnerAddress>& owners);

// Asks for the status of `owner` from `asker`.
absl::StatusOr<v1::WorkerStatus> StatusOf(Worker& asker, const std::string& owner);
// Returns how many steps the optimizer `name` has accepted, or 0 if there is no such optimizer.
uint64_t StepsOf(const v1::WorkerStatus& status, const std::string& name);
// Returns the state of the peer `name`, or null if the owner does not know it.
const v1::PeerState* PeerOf(const v1::WorkerStatus& status, const std::string& name);

// The objects that sessions hold on an owner, and the memory that its values take.
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
