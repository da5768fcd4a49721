#pragma once

// Kills process groups when this process dies, however it dies.

#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"

namespace psd::cli {

// A small process that waits for the end of this one. The system itself kills the processes that
// this process has started (ChildProcess), but not those that they have started in turn.
// Thread-compatible.
class Keeper {
 public:
  // Errors: RESOURCE_EXHAUSTED if the system has no process or descriptor left.
  static absl::StatusOr<std::unique_ptr<Keeper>> Start();
  // Ends the small process. Groups that are still watched are killed.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  void Watch(pid_t group) { Tell(group); }
  // Must be called before the number of the group may be used again.
  void Forget(pid_t group) { Tell(-group); }

 private:
  Keeper(pid_t pid, int pipe) : pid_(pid), pipe_(pipe) {}
  void Tell(pid_t group);

  const pid_t pid_;
  const int pipe_;
};

}  // namespace psd::cli
