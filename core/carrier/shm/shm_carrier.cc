#include "core/carrier/shm/shm_carrier.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/carrier/descriptor_reserve.h"
#include "core/carrier/shm/segment.h"
#include "core/carrier/shm/shm_link.h"
#include "core/carrier/shm/unix_socket.h"

namespace psd::carrier {
namespace {

// The pause after which a listener looks for connections again if there were too few descriptors.
constexpr absl::Duration kDescriptorPause = absl::Milliseconds(100);
// The most connections that are accepted at one wake-up. The poller is woken again to accept more,
// or to stop.
constexpr int kAcceptsPerWake = 16;

absl::Status CheckOptions(const ShmCarrierOptions& options) {
  if (options.poll_threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("poll_threads = ", options.poll_threads, "; at least 1 is needed"));
  }
  return CheckRingSizes(options.rings);
}

}  // namespace

// Accepts connections on a thread of its own. Any process on this host can connect, and can make
// the system wait for long when its socket is closed, by passing a descriptor whose close waits.
// Then this thread accepts no more connections, peers use the network, and all links go on.
class ShmCarrier::Listener : public Watched, public std::enable_shared_from_this<Listener> {
 public:
  Listener(std::shared_ptr<ShmCore> core, UnixListener socket, AcceptCallback accept,
           std::unique_ptr<ShmPoller> poller)
      : core_(std::move(core)),
        socket_(std::move(socket)),
        accept_(std::move(accept)),
        poller_(std::move(poller)) {}
  ~Listener() override { RemoveFile(socket_); }

  absl::Status Start() { return poller_->Add(socket_.fd.get(), shared_from_this()); }
  // Joins the thread.
  void Stop() {
    stopped_.store(true);
    poller_->Remove(socket_.fd.get());
    // Peers that have connected and were not accepted learn that the listener has ended.
    shutdown(socket_.fd.get(), SHUT_RDWR);
    poller_->Stop();
  }

  bool OnWake(bool readable) override {
    for (int i = 0; i < kAcceptsPerWake && readable && !stopped_.load(); ++i) {
      UniqueFd fd(accept4(socket_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.valid()) {
        Introduce(std::move(fd));
      } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        Pause();
        break;
      } else if (errno != EINTR && errno != ECONNABORTED) {
        break;
      }
    }
    return false;
  }
  Look OnLook(bool) override { return Look::kAsleep; }

 private:
  void Introduce(UniqueFd fd) {
    const absl::StatusOr<PeerProcess> peer = PeerOf(fd.get());
    if (!peer.ok()) return;
    if (!core_->Trusts(peer->uid)) {
      return RefusePeer(
          fd.get(),
          absl::StrCat("user ", peer->uid, " may not connect to this worker of user ", geteuid()));
    }
    const rlim_t limit = DescriptorLimit();
    const absl::Status reserved = CheckDescriptor(fd.get(), limit);
    if (!reserved.ok()) return RefusePeer(fd.get(), reserved.message());
    const std::shared_ptr<ShmLink> link = ShmLink::Accept(core_, std::move(fd), *peer, accept_);
    silent_.push_back(link);
    BoundSilent(UnheardBound(limit));
  }

  // Ends the oldest of the links that are not open yet if there are more than `bound` of them.
  void BoundSilent(size_t bound) {
    const auto over = [](const std::weak_ptr<ShmLink>& weak) {
      const std::shared_ptr<ShmLink> link = weak.lock();
      return link == nullptr || !link->silent();
    };
    while (!silent_.empty() && over(silent_.front())) silent_.pop_front();
    if (silent_.size() <= bound) return;
    silent_.erase(std::remove_if(silent_.begin(), silent_.end(), over), silent_.end());
    for (; silent_.size() > bound; silent_.pop_front()) {
      if (const std::shared_ptr<ShmLink> link = silent_.front().lock()) link->EndSilent(bound);
    }
  }

  // Without this pause, a socket with connections that cannot be accepted would stay readable.
  void Pause() {
    poller_->Remove(socket_.fd.get());
    core_->timers().RunAfter(kDescriptorPause, [weak = weak_from_this()] {
      const std::shared_ptr<Listener> self = weak.lock();
      if (self == nullptr || self->stopped_.load()) return;
      if (!self->Start().ok()) self->Pause();
    });
  }

  const std::shared_ptr<ShmCore> core_;  // shared with the carrier
  const UnixListener socket_;
  const AcceptCallback accept_;
  const std::unique_ptr<ShmPoller> poller_;  // does nothing else
  std::atomic<bool> stopped_{false};
  // Used only on the poller's thread. The accepted links, oldest first; some of them may be open.
  std::deque<std::weak_ptr<ShmLink>> silent_;
};

absl::StatusOr<std::shared_ptr<Carrier>> NewShmCarrier(const ShmCarrierOptions& options) {
  PSD_RETURN_IF_ERROR(CheckOptions(options));
  ShmCarrierOptions complete = options;
  if (complete.memory == nullptr) complete.memory = MemoryBudget::Create(0);
  if (complete.allocator == nullptr) complete.allocator = complete.memory->transit();
  auto carrier = std::make_shared<ShmCarrier>(complete);
  PSD_RETURN_IF_ERROR(carrier->Start());
  return std::static_pointer_cast<Carrier>(std::move(carrier));
}

ShmCarrier::ShmCarrier(const ShmCarrierOptions& options)
    : core_(std::make_shared<ShmCore>(options)) {}

ShmCarrier::~ShmCarrier() {
  Shutdown();
}

absl::StatusOr<std::string> ShmCarrier::Listen(const std::string& address, AcceptCallback accept) {
  MutexLock lock(mutex_);
  if (stopped_) return absl::UnavailableError("this carrier was shut down");
  PSD_ASSIGN_OR_RETURN(auto poller,
                       ShmPoller::Create("the thread that takes connections over shared memory"));
  PSD_ASSIGN_OR_RETURN(UnixListener socket, ListenUnix(address));
  std::string bound = socket.address;
  auto listener =
      std::make_shared<Listener>(core_, std::move(socket), std::move(accept), std::move(poller));
  PSD_RETURN_IF_ERROR(listener->Start());
  listeners_.push_back(std::move(listener));
  return bound;
}

void ShmCarrier::Connect(const std::string& address, absl::Duration timeout,
                         std::shared_ptr<LinkHandler> handler, ConnectCallback done) {
  ShmLink::Dial(core_, address, timeout, std::move(handler), std::move(done));
}

SharedTraffic ShmCarrier::shared_traffic() const {
  SharedTraffic sum;
  for (const auto& link : core_->Links(sum)) sum += link->shared_traffic();
  return sum;
}

void ShmCarrier::Shutdown() {
  MutexLock lock(mutex_);
  if (stopped_) return;
  stopped_ = true;
  for (const auto& listener : listeners_) listener->Stop();
  for (const auto& link : core_->BeginShutdown()) link->Close();
  core_->AwaitQuiet();
  core_->Stop();
  listeners_.clear();
}

}  // namespace psd::carrier
