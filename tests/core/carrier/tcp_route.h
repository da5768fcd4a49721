#pragma once

// A way to a TCP address that can be broken off, as if the peer had died.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"

namespace psd::carrier {

// A listening socket on a free port of the loopback.
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

// Forwards every connection to the target, with a thread per direction. Thread-safe.
class TcpRoute {
 public:
  explicit TcpRoute(int target_port) : target_port_(target_port) {
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

  // Breaks off all connections and accepts no more.
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
      int connected = connect(far, reinterpret_cast<sockaddr*>(&address), sizeof(address));
      MutexLock lock(mutex_);
      fds_.push_back(near);
      fds_.push_back(far);
      if (cut_ || connected != 0) {
        shutdown(near, SHUT_RDWR);
        return;
      }
      pumps_.emplace_back([near, far] { Pump(near, far); });
      pumps_.emplace_back([near, far] { Pump(far, near); });
    }
  }

  static void Pump(int from, int to) {
    std::vector<char> bytes(size_t{256} << 10);
    ssize_t got = 0;
    while ((got = recv(from, bytes.data(), bytes.size(), 0)) > 0) {
      for (ssize_t sent = 0; sent < got;) {
        ssize_t part = send(to, bytes.data() + sent, got - sent, MSG_NOSIGNAL);
        if (part <= 0) return static_cast<void>(shutdown(from, SHUT_RDWR));
        sent += part;
      }
    }
    shutdown(to, SHUT_RDWR);
  }

  const int target_port_;
  int port_ = 0;
  int listener_ = -1;
  Mutex mutex_;
  bool cut_ PSD_GUARDED_BY(mutex_) = false;
  std::vector<int> fds_;  // guarded by mutex_ until acceptor_ was joined
  std::vector<std::thread> pumps_;
  std::thread acceptor_;
};

}  // namespace psd::carrier
