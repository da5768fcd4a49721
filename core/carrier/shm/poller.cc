#include "core/carrier/shm/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "core/base/clock.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"
#include "core/base/system_refusal.h"
#include "core/carrier/shm/spin_policy.h"

namespace psd::carrier {
namespace {

// Sockets are looked at once in so many turns over the rings. A turn that finds something takes
// longer and counts as several, so that busy rings do not keep the sockets waiting.
constexpr int kTurnsPerWait = 128;
constexpr int kTurnsOfOneThatFinds = 16;
constexpr int kEventsAtOnce = 64;
// How long a thread to which something has just come sleeps before it sleeps until it is woken.
// Meanwhile the bell need not interrupt it, which would take as long as the call that it is about.
constexpr int kDozeMs = 2;
// If a thread runs out of work more rarely than this, a doze is not worth its wake-up.
constexpr absl::Duration kOften = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::unique_ptr<ShmPoller>> ShmPoller::Create(const std::string& what) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return SystemRefusal(what, errno);
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SystemRefusal(what, errno);
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = wake.get();
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return SystemRefusal(what, errno);
  }
  std::unique_ptr<ShmPoller> poller(new ShmPoller(std::move(epoll), std::move(wake)));
  PSD_ASSIGN_OR_RETURN(poller->thread_, StartThread(what, [raw = poller.get()] { raw->Run(); }));
  return poller;
}

ShmPoller::~ShmPoller() {
  Stop();
}

absl::Status ShmPoller::Add(int fd, std::shared_ptr<Watched> watched) {
  MutexLock lock(mutex_);
  if (stopping_) return absl::UnavailableError("this carrier was shut down");
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return SystemRefusal("to watch a socket", errno);
  }
  watched_[fd] = std::move(watched);
  return absl::OkStatus();
}

void ShmPoller::Remove(int fd) {
  std::shared_ptr<Watched> last;  // destroyed after the lock
  MutexLock lock(mutex_);
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  last = std::move(found->second);
  watched_.erase(found);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void ShmPoller::Kick(std::shared_ptr<Watched> watched) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;  // nobody takes it any more
    kicked_.push_back(std::move(watched));
  }
  bell_->Interrupt();
}

void PollerBell::Interrupt() const {
  const uint64_t one = 1;
  static_cast<void>(!write(wake_.get(), &one, sizeof(one)));
}

void PollerBell::ClearInterrupts() const {
  uint64_t count = 0;
  static_cast<void>(!read(wake_.get(), &count, sizeof(count)));
}

void ShmPoller::Stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  bell_->Interrupt();
  thread_.join();
  MutexLock lock(mutex_);
  watched_.clear();
  kicked_.clear();
}

void ShmPoller::Run() {
  Hot hot;
  while (Wait(hot)) LookAround(hot);
}

int ShmPoller::SleepMs(const Hot& hot) {
  if (!hot.empty()) return 0;
  if (came_) {
    const absl::Time before = std::exchange(quiet_since_, Clock::Steady().Now());
    if (quiet_since_ - before < kOften) return kDozeMs;
  }
  return bell_->FallAsleep() ? -1 : 0;
}

bool ShmPoller::Wait(Hot& hot) {
  epoll_event events[kEventsAtOnce];
  const int count = epoll_wait(epoll_.get(), events, kEventsAtOnce, SleepMs(hot));
  bell_->Awake();
  for (int i = 0; i < count; ++i) {
    // Before kicked_ is taken: who kicks after that wakes the thread once more.
    if (events[i].data.fd == bell_->wake_.get()) bell_->ClearInterrupts();
  }
  const bool rung = bell_->TakeRung();
  came_ = count > 0 || rung || !hot.empty();
  std::vector<std::shared_ptr<Watched>> readable;
  std::vector<std::shared_ptr<Watched>> kicked;
  std::vector<std::shared_ptr<Watched>> called;
  {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    for (int i = 0; i < count; ++i) {
      const auto found = watched_.find(events[i].data.fd);
      if (found != watched_.end()) readable.push_back(found->second);
    }
    kicked.swap(kicked_);
    if (rung) {
      for (const auto& [fd, watched] : watched_) {
        if (watched->IsCalled()) called.push_back(watched);
      }
    }
  }
  for (const auto& watched : called) watched->OnCall();
  for (auto& watched : readable) Wake(std::move(watched), /*readable=*/true, hot);
  for (auto& watched : kicked) Wake(std::move(watched), /*readable=*/false, hot);
  return true;
}

void ShmPoller::Wake(std::shared_ptr<Watched> watched, bool readable, Hot& hot) {
  if (!watched->OnWake(readable)) return;
  if (std::find(hot.begin(), hot.end(), watched) == hot.end()) hot.push_back(std::move(watched));
}

void ShmPoller::LookAround(Hot& hot) {
  unsigned turn = 0;
  bool crowded = false;
  for (int turns = 0; turns < kTurnsPerWait && !hot.empty();) {
    bool found = false;
    for (size_t k = 0; k < hot.size();) {
      const Watched::Look look = hot[k]->OnLook(crowded);
      found = found || look == Watched::Look::kFound;
      if (look != Watched::Look::kAsleep) {
        ++k;
        continue;
      }
      std::swap(hot[k], hot.back());
      hot.pop_back();
    }
    turns += found ? kTurnsOfOneThatFinds : 1;
    turn = found ? 0 : turn + 1;
    crowded = !found && !SpinTurn(turn);
  }
}

}  // namespace psd::carrier
