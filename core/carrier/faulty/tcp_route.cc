#include "core/carrier/faulty/tcp_route.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/host_port.h"
#include "core/base/status.h"

namespace psd::carrier {
namespace {

// The most bytes that are under way in one direction of a connection with and without a delay.
constexpr size_t kDelayedBytes = size_t{32} << 20;
constexpr size_t kUndelayedBytes = size_t{256} << 10;

sockaddr_in ToSockAddr(const std::string& host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  PSD_CHECK(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1, host);
  return address;
}

// Without this the kernel would keep small writes back until earlier ones are acknowledged.
void SendAtOnce(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

// Carries one direction of a connection. Confined to one thread.
class Pump {
 public:
  Pump(int from, int to, absl::Duration one_way)
      : from_(from),
        to_(to),
        one_way_(one_way),
        size_(one_way > absl::ZeroDuration() ? kDelayedBytes : kUndelayedBytes),
        ring_(new char[size_]) {}

  // Returns when the connection has ended.
  void Run() {
    bool open = true;
    while (open || !parcels_.empty()) {
      if (!SendFirst()) {
        shutdown(from_, SHUT_RDWR);
        return;
      }
      if (open && Room() > 0) {
        open = Take();
      } else if (!parcels_.empty()) {
        absl::SleepFor(parcels_.front().due - absl::Now());
      }
    }
    shutdown(to_, SHUT_RDWR);
  }

 private:
  // Bytes of the ring that are due at the same time. Positions count all bytes of the connection.
  struct Parcel {
    absl::Time due;
    size_t end = 0;
  };

  // Returns how many bytes can be received in one piece.
  size_t Room() const { return std::min(size_ - (received_ - sent_), size_ - received_ % size_); }

  // Sends the first parcel if it is due. Only one, so that bytes are received meanwhile. Returns
  // false if the target is gone.
  bool SendFirst() {
    if (parcels_.empty() || parcels_.front().due > absl::Now()) return true;
    while (sent_ < parcels_.front().end) {
      const ssize_t part =
          send(to_, &ring_[sent_ % size_], parcels_.front().end - sent_, MSG_NOSIGNAL);
      if (part <= 0) return false;
      sent_ += static_cast<size_t>(part);
    }
    parcels_.pop_front();
    if (parcels_.empty()) sent_ = received_ = 0;  // uses the warm beginning of the ring again
    return true;
  }

  // Waits for bytes, but not longer than until the first parcel is due. Returns false at the end of
  // the input.
  bool Take() {
    std::optional<timespec> wait;
    if (!parcels_.empty()) {
      const absl::Duration left = parcels_.front().due - absl::Now();
      wait = absl::ToTimespec(std::max(left, absl::ZeroDuration()));
    }
    pollfd readable = {from_, POLLIN, 0};
    if (ppoll(&readable, 1, wait.has_value() ? &*wait : nullptr, nullptr) <= 0) return true;
    // Small enough that the first bytes do not wait long for the last.
    constexpr size_t kMostAtOnce = size_t{256} << 10;
    const ssize_t got = recv(from_, &ring_[received_ % size_], std::min(Room(), kMostAtOnce), 0);
    if (got <= 0) return false;
    received_ += static_cast<size_t>(got);
    parcels_.push_back({absl::Now() + one_way_, received_});
    return true;
  }

  const int from_;
  const int to_;
  const absl::Duration one_way_;
  const size_t size_;
  const std::unique_ptr<char[]> ring_;  // pages that are never used take no memory
  size_t received_ = 0;
  size_t sent_ = 0;
  std::deque<Parcel> parcels_;  // never crosses the end of the ring
};

}  // namespace

int ListenOnLoopback(int* port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = ToSockAddr("127.0.0.1", 0);
  socklen_t length = sizeof(address);
  const bool ok = bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                  listen(fd, 16) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  PSD_CHECK(ok, "no free port on the loopback");
  *port = ntohs(address.sin_port);
  return fd;
}

TcpRoute::TcpRoute(const std::string& target, absl::Duration one_way, const std::string& source)
    : source_(ToSockAddr(source, 0)), one_way_(one_way) {
  const absl::StatusOr<HostPort> parsed = ParseHostPortToDial(target);
  PSD_CHECK(parsed.ok(), target);
  target_ = ToSockAddr(parsed->host, parsed->port);
  listener_ = ListenOnLoopback(&port_);
  acceptor_ = std::thread([this] { Accept(); });
}

TcpRoute::~TcpRoute() {
  Cut();
  acceptor_.join();
  for (std::thread& pump : pumps_) pump.join();
  for (int fd : fds_) close(fd);
  close(listener_);
}

std::string TcpRoute::address() const {
  return absl::StrCat("127.0.0.1:", port_);
}

size_t TcpRoute::connections() {
  MutexLock lock(mutex_);
  return fds_.size() / 2;
}

void TcpRoute::Cut() {
  MutexLock lock(mutex_);
  cut_ = true;
  shutdown(listener_, SHUT_RDWR);
  for (int fd : fds_) shutdown(fd, SHUT_RDWR);
}

void TcpRoute::Accept() {
  while (true) {
    const int near = accept(listener_, nullptr, nullptr);
    if (near < 0) return;
    const int far = socket(AF_INET, SOCK_STREAM, 0);
    bind(far, reinterpret_cast<sockaddr*>(&source_), sizeof(source_));
    const int connected = connect(far, reinterpret_cast<sockaddr*>(&target_), sizeof(target_));
    SendAtOnce(near);
    SendAtOnce(far);
    MutexLock lock(mutex_);
    fds_.push_back(near);
    fds_.push_back(far);
    if (cut_ || connected != 0) {
      for (int fd : {near, far}) shutdown(fd, SHUT_RDWR);
      if (cut_) return;
      continue;
    }
    for (const auto& [from, to] : {std::pair(near, far), std::pair(far, near)}) {
      pumps_.emplace_back(
          [from = from, to = to, one_way = one_way_] { Pump(from, to, one_way).Run(); });
    }
  }
}

}  // namespace psd::carrier
