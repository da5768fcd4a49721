#pragma once

// A child process with pipes to its standard input and output, in a process group of its own. It
// ends when this object is destroyed, and when this process ends in any way.

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace psd::bench {

// Thread-compatible.
class Process {
 public:
  // `command[0]` is the program's path. The child shares this process's standard error.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const std::vector<std::string>& command);
  // Sends SIGTERM, and SIGKILL if the process does not end within seconds.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // Stops the child and the children in its process group, until Resume.
  void Pause() const;
  void Resume() const;

  // Errors: UNAVAILABLE if the child has closed its input or output; DEADLINE_EXCEEDED.
  absl::Status WriteLine(absl::string_view line);
  absl::StatusOr<std::string> ReadLine(absl::Duration timeout);

  // Returns the CPU time that all its threads have used so far.
  absl::StatusOr<double> CpuSeconds() const;
  // Returns its resident memory, including shared segments.
  absl::StatusOr<size_t> ResidentBytes() const;

 private:
  Process(std::string name, pid_t pid, int in, int out);

  const std::string name_;
  const pid_t pid_;
  const int in_;   // the child's input; this process writes to it
  const int out_;  // the child's output; this process reads from it
  std::string pending_;
};

}  // namespace psd::bench
