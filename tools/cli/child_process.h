#pragma once

// Starts a program in a process group of its own and reads what it writes.

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace psd::cli {

struct ChildSpec {
  std::vector<std::string> command;  // the program, looked up in PATH, and its arguments
  // Variables that are set in addition to those of this process. Those without a value are removed.
  std::vector<std::pair<std::string, std::optional<std::string>>> environment;
  // An open descriptor that the program gets under the same number; -1 for none.
  int kept_descriptor = -1;
  bool silent = false;  // whether its standard output is dropped
};

// Thread-compatible. It may be used only on the thread that started it, because the system kills
// the process when that thread ends.
class ChildProcess {
 public:
  // Starts the program with no input. Errors: NOT_FOUND and PERMISSION_DENIED naming the program if
  // it cannot be executed; RESOURCE_EXHAUSTED if the system has no process or descriptor left.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const ChildSpec& spec);
  // Kills the process and its group, unless it was reaped.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Also the number of its group.
  pid_t pid() const { return pid_; }
  // The non-blocking reading ends of the pipes for its standard output and standard error.
  int output() const { return output_; }
  int errors() const { return errors_; }

  // Sends a signal to the process and to all that it has started. Does nothing once it was reaped.
  void Signal(int number);
  // Returns whether the process has ended and was not reaped. If so, kills what it has left running
  // in its group, whose number stays taken until Reap.
  bool EndGroup();
  // Returns the status of the ended process, as waitpid does, or nullopt if it is still running or
  // was reaped before. Ends its group first.
  std::optional<int> Reap();

 private:
  ChildProcess(pid_t pid, int output, int errors) : pid_(pid), output_(output), errors_(errors) {}

  const pid_t pid_;
  const int output_;
  const int errors_;
  bool reaped_ = false;
};

}  // namespace psd::cli
