#pragma once

// A thread that watches sockets and, for a while after something came, the rings behind them.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"

namespace psd::carrier {

// Something behind a socket. Its calls come on the poller's thread and never overlap.
class Watched {
 public:
  virtual ~Watched() = default;
  // The socket can be read or has ended (`readable`), or Kick was called. Returns true if Look is
  // to be called from now on.
  virtual bool OnWake(bool readable) = 0;

  enum class Look {
    kFound,
    kNothing,
    kAsleep,  // nothing comes: Look is not called again before the next OnWake
  };
  // `crowded`: others wait for the processor that this thread uses.
  virtual Look OnLook(bool crowded) = 0;
  // Whether OnCall is to be called after PollerBell::Ring. Runs under a lock.
  virtual bool IsCalled() const { return false; }
  virtual void OnCall() {}
};

// Wakes a poller from a thread that may hold any lock: Ring takes none, and does not wait.
// Thread-safe. Shared by the poller and those who ring; after the poller has stopped, nobody hears.
class PollerBell {
 public:
  explicit PollerBell(UniqueFd wake) : wake_(std::move(wake)) {}

  // Has the poller call everything that it watches and that says that it is called, within a few
  // milliseconds. A poller that is awake or only dozes is not interrupted.
  void Ring() {
    if (!rung_.exchange(true) && !wakes_soon_.load()) Interrupt();
  }

 private:
  friend class ShmPoller;
  void Interrupt() const;
  // To be called before the reasons of interrupts are looked at.
  void ClearInterrupts() const;
  bool TakeRung() { return rung_.load() && rung_.exchange(false); }
  // From now on, Ring interrupts the poller. Returns false if it was called before that.
  bool FallAsleep() {
    wakes_soon_.store(false);
    return !rung_.load();
  }
  void Awake() { wakes_soon_.store(true); }

  const UniqueFd wake_;
  // Both are written before the other one is read: by Ring rung_ first, by the poller wakes_soon_.
  std::atomic<bool> rung_{false};
  std::atomic<bool> wakes_soon_{false};
};

// Thread-safe. While nothing asks for looks, the thread sleeps.
class ShmPoller {
 public:
  // `what` names the thread in errors. Errors: RESOURCE_EXHAUSTED if the system refuses a thread or
  // a descriptor.
  static absl::StatusOr<std::unique_ptr<ShmPoller>> Create(const std::string& what);
  // Stops.
  ~ShmPoller();
  ShmPoller(const ShmPoller&) = delete;
  ShmPoller& operator=(const ShmPoller&) = delete;

  // Calls `watched` when `fd` can be read, until Remove. Errors: RESOURCE_EXHAUSTED; UNAVAILABLE
  // after Stop.
  absl::Status Add(int fd, std::shared_ptr<Watched> watched) PSD_EXCLUDES(mutex_);
  // Must be called before `fd` is closed.
  void Remove(int fd) PSD_EXCLUDES(mutex_);
  // Calls OnWake on the poller's thread soon, whether or not its socket is watched. Does nothing
  // after Stop.
  void Kick(std::shared_ptr<Watched> watched) PSD_EXCLUDES(mutex_);

  const std::shared_ptr<PollerBell>& bell() const { return bell_; }

  // Joins the thread. Not from that thread.
  void Stop() PSD_EXCLUDES(mutex_);

 private:
  ShmPoller(UniqueFd epoll, UniqueFd wake)
      : epoll_(std::move(epoll)), bell_(std::make_shared<PollerBell>(std::move(wake))) {}

  using Hot = std::vector<std::shared_ptr<Watched>>;
  void Run() PSD_EXCLUDES(mutex_);
  // Waits for sockets and kicks, only if nothing is hot. Returns false when the poller stops.
  bool Wait(Hot& hot) PSD_EXCLUDES(mutex_);
  // How long to sleep if nothing comes, in milliseconds; -1 for ever. To be called before each
  // wait.
  int SleepMs(const Hot& hot);
  // Looks at everything hot for a few turns.
  static void LookAround(Hot& hot);
  static void Wake(std::shared_ptr<Watched> watched, bool readable, Hot& hot);

  const UniqueFd epoll_;
  const std::shared_ptr<PollerBell> bell_;  // shared with those who ring it
  std::thread thread_;
  // Used only on the thread.
  bool came_ = false;                              // something came before the last wait
  absl::Time quiet_since_ = absl::InfinitePast();  // when the thread last ran out of work

  Mutex mutex_;  // leaf
  absl::flat_hash_map<int, std::shared_ptr<Watched>> watched_ PSD_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Watched>> kicked_ PSD_GUARDED_BY(mutex_);
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::carrier
