#include "core/carrier/grpc/connection_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/clock.h"
#include "core/base/remedy.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"
#include "core/carrier/descriptor_reserve.h"

namespace psd::carrier {
namespace {

// Refusing a connection also takes a descriptor. If there is none, it is tried again after this
// time.
constexpr int kRetryMs = 100;

// Returns the timeout for poll until `when`, rounded up; -1 means no timeout.
int MillisecondsUntil(absl::Time when) {
  if (when == absl::InfiniteFuture()) return -1;
  const absl::Duration left = when - Clock::Steady().Now();
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(left) + 1));
}

void SetOption(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof(value));
}

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void SetPort(addrinfo& target, int port) {
  if (target.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(target.ai_addr)->sin6_port = htons(port);
  } else if (target.ai_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(target.ai_addr)->sin_port = htons(port);
  }
}

absl::Status CannotListen(const std::string& address, const std::string& reason) {
  return absl::UnavailableError(absl::StrCat("cannot listen at ", address, ": ", reason));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionListener>> ConnectionListener::Bind(
    const std::string& address, absl::Duration user_timeout, absl::Duration handshake_timeout) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return CannotListen(address, "it has no port; write host:port");
  }
  absl::string_view host = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(std::string(host).c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> targets(found, &freeaddrinfo);
  std::unique_ptr<ConnectionListener> listener(new ConnectionListener(handshake_timeout));
  for (addrinfo* target = found; target != nullptr; target = target->ai_next) {
    if (listener->port_ != 0) SetPort(*target, listener->port_);
    const std::string reason = listener->Add(*target, user_timeout);
    if (!reason.empty()) return CannotListen(address, reason);
  }
  listener->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener->wake_ < 0) return CannotListen(address, std::strerror(errno));
  PSD_ASSIGN_OR_RETURN(listener->thread_, StartThread("a thread that takes connections",
                                                      [raw = listener.get()] { raw->Run(); }));
  return listener;
}

std::string ConnectionListener::Add(const addrinfo& target, absl::Duration user_timeout) {
  const int fd = socket(target.ai_family, target.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                        target.ai_protocol);
  if (fd < 0) return std::strerror(errno);
  sockets_.push_back(fd);
  // Accepted sockets inherit these options.
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
            static_cast<int>(absl::ToInt64Milliseconds(user_timeout)));
  if (bind(fd, target.ai_addr, target.ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
    return std::strerror(errno);
  }
  port_ = PortOf(fd);
  return "";
}

ConnectionListener::~ConnectionListener() {
  Stop();
  for (int fd : sockets_) close(fd);
  if (wake_ >= 0) close(wake_);
}

void ConnectionListener::Start(OnConnection on_connection, OnChange on_change) {
  {
    MutexLock lock(mutex_);
    on_connection_ = std::move(on_connection);
    on_change_ = std::move(on_change);
    phase_ = Phase::kStarted;
  }
  changed_.NotifyAll();
}

void ConnectionListener::Stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(mutex_);
    phase_ = Phase::kStopped;
  }
  changed_.NotifyAll();
  const uint64_t one = 1;
  PSD_CHECK(write(wake_, &one, sizeof(one)) == sizeof(one), "an eventfd takes its first number");
  thread_.join();
}

// Returns false if the listener is stopped before Start.
bool ConnectionListener::AwaitStart() {
  MutexLock lock(mutex_);
  while (phase_ == Phase::kBound) changed_.Wait(mutex_);
  return phase_ == Phase::kStarted;
}

void ConnectionListener::Run() {
  if (!AwaitStart()) return;
  std::vector<pollfd> polled = {{wake_, POLLIN, 0}};
  for (int fd : sockets_) polled.push_back({fd, POLLIN, 0});
  for (;;) {
    const int expires = MillisecondsUntil(unheard_.EndSilent(Clock::Steady().Now()));
    // While there is no descriptor at all, waiting connections are not accepted.
    const nfds_t count = exhausted_ ? 1 : polled.size();
    if (poll(polled.data(), count, exhausted_ ? kRetryMs : expires) < 0) continue;
    if (polled[0].revents != 0) return;
    exhausted_ = false;
    for (int fd : sockets_) AcceptAll(fd);
  }
}

void ConnectionListener::AcceptAll(int listening) {
  for (;;) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    const int fd =
        accept4(listening, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    const int error = errno;
    const rlim_t limit = DescriptorLimit();
    if (fd < 0) {
      if (error == EINTR || error == ECONNABORTED) continue;
      if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return;
      exhausted_ = true;
      return Refusing(WithRemedy(
          absl::ResourceExhaustedError(absl::StrCat(
              "no connection can be taken: ", std::strerror(error), " (limit ", limit, ")")),
          "raise the limit (LimitNOFILE, ulimit -n)"));
    }
    const absl::Status reserved = CheckDescriptor(fd, limit);
    if (!reserved.ok()) {
      close(fd);
      Refusing(Annotate(reserved, "connections are refused"));
      continue;
    }
    Refusing(absl::OkStatus());
    unheard_.Add(fd, PeerName(peer), UnheardBound(limit), Clock::Steady().Now());
    on_connection_(fd);
  }
}

void ConnectionListener::Refusing(const absl::Status& why) {
  if (refusing_ == !why.ok()) return;
  refusing_ = !why.ok();
  if (on_change_) on_change_(why);
}

}  // namespace psd::carrier
