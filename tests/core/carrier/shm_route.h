#pragma once

// A proxy of Unix sockets that passes packets and their descriptors on, and can break its
// connections as if the peer had ended. Rings do not go through it.

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/carrier/shm/unix_socket.h"

namespace psd::carrier {

// Thread-safe.
class ShmRoute {
 public:
  explicit ShmRoute(std::string target) : target_(std::move(target)) {
    auto listener = ListenUnix("unix:@");
    PSD_CHECK(listener.ok(), "no free socket");
    listener_ = *std::move(listener);
    thread_ = std::thread([this] { Run(); });
  }
  ~ShmRoute() {
    stopping_ = true;
    thread_.join();
  }

  const std::string& address() const { return listener_.address; }
  // Closes all connections. The route accepts no more.
  void Cut() { cut_ = true; }
  // Closes all present connections. Later ones are accepted.
  void CutNow() { cut_now_ = true; }

 private:
  void Run() {
    std::vector<std::pair<UniqueFd, UniqueFd>> pairs;
    while (!stopping_) {
      if (cut_now_.exchange(false) || cut_) pairs.clear();
      std::vector<pollfd> fds;
      fds.push_back({listener_.fd.get(), POLLIN, 0});
      for (const auto& [a, b] : pairs) {
        fds.push_back({a.get(), POLLIN, 0});
        fds.push_back({b.get(), POLLIN, 0});
      }
      if (poll(fds.data(), fds.size(), /*timeout=*/1) <= 0) continue;
      if (fds[0].revents != 0 && !cut_) {
        UniqueFd accepted(accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
        auto onward = ConnectUnix(target_);
        if (accepted.valid() && onward.ok()) {
          pairs.emplace_back(std::move(accepted), *std::move(onward));
        }
        continue;
      }
      for (size_t i = 0; i < pairs.size();) {
        const bool whole =
            Pass(pairs[i].first, pairs[i].second) && Pass(pairs[i].second, pairs[i].first);
        if (whole) {
          ++i;
        } else {
          pairs.erase(pairs.begin() + static_cast<long>(i));
        }
      }
    }
  }

  static bool Pass(const UniqueFd& from, const UniqueFd& to) {
    while (true) {
      auto packet = ReceivePacket(from.get());
      if (!packet.ok()) return false;
      if (!packet->has_value()) return true;
      SendPacket(to.get(), (*packet)->kind, (*packet)->body, (*packet)->fd.get());
    }
  }

  const std::string target_;
  UnixListener listener_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> cut_{false};
  std::atomic<bool> cut_now_{false};
  std::thread thread_;
};

}  // namespace psd::carrier
