#pragma once

// A child process with pipes to its standard input and output. It ends with this object, and with
// this process, whatever ends that.

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
  // `command[0]` is the program's path. Its standard error is ours.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const std::vector<std::string>& command);
  // Sends SIGTERM, and SIGKILL if the process does not end within seconds.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // Errors: UNAVAILABLE when it has closed its input or output; DEADLINE_EXCEEDED.
  absl::Status WriteLine(absl::string_view line);
  absl::StatusOr<std::string> ReadLine(absl::Duration timeout);

  // CPU time used so far by all its threads.
  absl::StatusOr<double> CpuSeconds() const;
  // Memory that is in use and belongs to it: resident, shared segments included.
  absl::StatusOr<size_t> ResidentBytes() const;

 private:
  Process(std::string name, pid_t pid, int in, int out);

  const std::string name_;
  const pid_t pid_;
  const int in_;   // we write here
  const int out_;  // we read here
  std::string pending_;
};

}  // namespace psd::bench
