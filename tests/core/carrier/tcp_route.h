#pragma once

// A TCP proxy that can delay bytes, and can break its connections as if the peer had died.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace psd::carrier {

// Returns a listening socket on a free port of the loopback interface.
inline int ListenOnLoopback(int* port) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  bool ok = bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(fd, 16) == 0 &&
            getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  PSD_CHECK(ok, "no free port on the loopback");
  *port = ntohs(address.sin_port);
  return fd;
}

// Forwards every connection to the target, with one thread for each direction. In both directions,
// bytes arrive `one_way` after they were sent. The target sees all connections as coming from
// `source`, an address of the loopback interface. Thread-safe.
class TcpRoute {
 public:
  explicit TcpRoute(int target_port, absl::Duration one_way = absl::ZeroDuration(),
                    const std::string& source = "127.0.0.1")
      : target_port_(target_port), one_way_(one_way) {
    source_.sin_family = AF_INET;
    PSD_CHECK(inet_pton(AF_INET, source.c_str(), &source_.sin_addr) == 1, source);
    listener_ = ListenOnLoopback(&port_);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~TcpRoute() {
    Cut();
    acceptor_.join();
    for (std::thread& pump : pumps_) pump.join();
    for (int fd : fds_) close(fd);
    close(listener_);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // The number of connections accepted so far.
  size_t connections() {
    MutexLock lock(mutex_);
    return fds_.size() / 2;
  }

  // Breaks all connections and accepts no more.
  void Cut() {
    MutexLock lock(mutex_);
    cut_ = true;
    shutdown(listener_, SHUT_RDWR);
    for (int fd : fds_) shutdown(fd, SHUT_RDWR);
  }

 private:
  void Accept() {
    while (true) {
      int near = accept(listener_, nullptr, nullptr);
      if (near < 0) return;
      int far = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(target_port_));
      bind(far, reinterpret_cast<sockaddr*>(&source_), sizeof(source_));
      int connected = connect(far, reinterpret_cast<sockaddr*>(&address), sizeof(address));
      MutexLock lock(mutex_);
      fds_.push_back(near);
      fds_.push_back(far);
      if (cut_ || connected != 0) {
        shutdown(near, SHUT_RDWR);
        if (cut_) return;
        continue;
      }
      pumps_.emplace_back([near, far, this] { Pump(near, far); });
      pumps_.emplace_back([near, far, this] { Pump(far, near); });
    }
  }

  // Bytes that wait until they are due.
  struct Parcel {
    absl::Time due;
    std::vector<char> bytes;
  };

  void Pump(int from, int to) const {
    std::deque<Parcel> under_way;
    bool open = true;
    while (open || !under_way.empty()) {
      while (!under_way.empty() && under_way.front().due <= absl::Now()) {
        if (!SendAll(to, under_way.front().bytes)) {
          shutdown(from, SHUT_RDWR);
          return;
        }
        under_way.pop_front();
      }
      open = open && Take(from, under_way);
      if (!open && !under_way.empty()) absl::SleepFor(under_way.front().due - absl::Now());
    }
    shutdown(to, SHUT_RDWR);
  }

  // Waits for bytes, but not longer than until the first parcel is due. Returns false at the end of
  // the input.
  bool Take(int from, std::deque<Parcel>& under_way) const {
    int wait_ms = -1;
    if (!under_way.empty()) {
      const absl::Duration left = under_way.front().due - absl::Now();
      wait_ms = std::max<int>(0, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    }
    pollfd readable = {from, POLLIN, 0};
    if (poll(&readable, 1, wait_ms) <= 0) return true;
    std::vector<char> bytes(size_t{256} << 10);
    const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    bytes.resize(static_cast<size_t>(got));
    under_way.push_back({absl::Now() + one_way_, std::move(bytes)});
    return true;
  }

  static bool SendAll(int to, const std::vector<char>& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t part = send(to, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (part <= 0) return false;
      sent += static_cast<size_t>(part);
    }
    return true;
  }

  const int target_port_;
  sockaddr_in source_ = {};
  const absl::Duration one_way_;
  int port_ = 0;
  int listener_ = -1;
  Mutex mutex_;
  bool cut_ PSD_GUARDED_BY(mutex_) = false;
  std::vector<int> fds_;  // guarded by mutex_ until acceptor_ has been joined
  std::vector<std::thread> pumps_;
  std::thread acceptor_;
};

}  // namespace psd::carrier
