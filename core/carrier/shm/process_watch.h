#pragma once

// Notices the end of the processes at the other ends of links.

#include <sys/types.h>

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/base/mutex.h"
#include "core/carrier/passed_descriptors.h"
#include "core/carrier/shm/poller.h"

namespace psd::carrier {

// A link may end while its process lives, and its socket may be open in several processes, so the
// end of a process is known from a descriptor of the process itself (pidfd). Thread-safe.
// Owned by the carrier, which stops the pollers first.
class ProcessWatch : public std::enable_shared_from_this<ProcessWatch> {
 public:
  // Returns the process at the other end of `socket`, which `poller` watches until it ends, or the
  // poller stops. Errors: UNAVAILABLE if the process is gone, or cannot be watched because it
  // belongs to another PID namespace; RESOURCE_EXHAUSTED if the system refuses a descriptor.
  absl::StatusOr<std::shared_ptr<HostProcess>> ProcessOf(int socket, ShmPoller& poller)
      PSD_EXCLUDES(mutex_);

 private:
  class Watch;

  void Forget(pid_t pid, const Watch* watch) PSD_EXCLUDES(mutex_);

  Mutex mutex_;  // before: ShmPoller
  // By number. A process has its number until its end was noticed by its parent, so the same number
  // may belong to another process only when the watched one has ended.
  absl::flat_hash_map<pid_t, std::shared_ptr<Watch>> watches_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::carrier
