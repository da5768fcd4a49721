#include "core/carrier/shm/process_watch.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/system_refusal.h"
#include "core/base/unique_fd.h"
#include "core/carrier/shm/unix_socket.h"

namespace psd::carrier {
namespace {

#ifndef SO_PEERPIDFD
constexpr int SO_PEERPIDFD = 77;  // Linux 6.5
#endif

// Returns those of `events` that have happened to `fd`; POLLHUP need not be asked for.
short Happened(int fd, short events) {
  pollfd one = {fd, events, 0};
  return poll(&one, 1, /*timeout=*/0) > 0 ? one.revents : short{0};
}

absl::StatusOr<UniqueFd> PidfdOf(int socket, const PeerProcess& peer) {
  const auto failed = [&peer](int error) -> absl::Status {
    if (error == EMFILE || error == ENFILE || error == ENOMEM)
      return SystemRefusal(absl::StrCat("to watch process ", peer.pid), error);
    return absl::UnavailableError(
        absl::StrCat("process ", peer.pid, " cannot be watched: ", std::strerror(error)));
  };
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) return UniqueFd(fd);
  if (errno != ENOPROTOOPT) return failed(errno);
  // An older system.
  UniqueFd opened(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  if (!opened.valid()) return failed(errno);
  // If the socket is still open at its other end, the process had not ended, and the number was its
  // own. (A process that forks and leaves the socket to a child could be taken for another one.)
  if ((Happened(socket, 0) & POLLHUP) != 0)
    return absl::UnavailableError(absl::StrCat("process ", peer.pid, " has ended"));
  return opened;
}

}  // namespace

class ProcessWatch::Watch : public Watched {
 public:
  Watch(std::weak_ptr<ProcessWatch> watches, const PeerProcess& peer, UniqueFd pidfd,
        ShmPoller& poller)
      : process_(std::make_shared<HostProcess>(
            absl::StrCat("process ", peer.pid, " of user ", peer.uid))),
        watches_(std::move(watches)),
        pid_(peer.pid),
        pidfd_(std::move(pidfd)),
        poller_(poller) {}

  const std::shared_ptr<HostProcess>& process() const { return process_; }
  int pidfd() const { return pidfd_.get(); }
  bool ended() const { return (Happened(pidfd_.get(), POLLIN) & POLLIN) != 0; }

  bool OnWake(bool readable) override {
    // The event may be of another file that had the same number until a moment ago.
    if (!readable || !ended()) return false;
    poller_.Remove(pidfd_.get());
    if (const std::shared_ptr<ProcessWatch> watches = watches_.lock()) watches->Forget(pid_, this);
    process_->End();
    return false;
  }
  Look OnLook(bool /*crowded*/) override { return Look::kAsleep; }

 private:
  const std::shared_ptr<HostProcess> process_;  // shared with those who care for the process
  const std::weak_ptr<ProcessWatch> watches_;
  const pid_t pid_;
  const UniqueFd pidfd_;
  ShmPoller& poller_;  // holds this object
};

absl::StatusOr<std::shared_ptr<HostProcess>> ProcessWatch::ProcessOf(int socket,
                                                                     ShmPoller& poller) {
  PSD_ASSIGN_OR_RETURN(const PeerProcess peer, PeerOf(socket));
  if (peer.pid == 0) {
    return absl::UnavailableError(
        "the system does not show the peer's process here: both must be in one PID namespace");
  }
  MutexLock lock(mutex_);
  if (const auto known = watches_.find(peer.pid);
      known != watches_.end() && !known->second->ended()) {
    return known->second->process();
  }
  PSD_ASSIGN_OR_RETURN(UniqueFd pidfd, PidfdOf(socket, peer));
  auto watch = std::make_shared<Watch>(weak_from_this(), peer, std::move(pidfd), poller);
  PSD_RETURN_IF_ERROR(poller.Add(watch->pidfd(), watch));
  watches_[peer.pid] = watch;
  return watch->process();
}

void ProcessWatch::Forget(pid_t pid, const Watch* watch) {
  std::shared_ptr<Watch> last;  // destroyed after the lock
  MutexLock lock(mutex_);
  const auto found = watches_.find(pid);
  if (found == watches_.end() || found->second.get() != watch) return;
  last = std::move(found->second);
  watches_.erase(found);
}

}  // namespace psd::carrier
