#include "core/carrier/grpc/unheard_connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace psd::carrier {

std::string PeerName(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", ntohs(v6.sin6_port));
}

std::string PeerName(absl::string_view context_peer) {
  const size_t scheme = context_peer.find(':');
  if (scheme == absl::string_view::npos) return "";
  return absl::StrReplaceAll(context_peer.substr(scheme + 1), {{"%5B", "["}, {"%5D", "]"}});
}

UnheardConnections::~UnheardConnections() {
  MutexLock lock(mutex_);
  for (const Connection& connection : connections_) close(connection.fd);
}

void UnheardConnections::Add(int fd, std::string peer, size_t bound, absl::Time now) {
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return;  // no descriptor is left; the listener reports this
  std::deque<Connection> ended;
  {
    MutexLock lock(mutex_);
    connections_.push_back({own, std::move(peer), now + patience_});
    while (connections_.size() > bound) {
      ended.push_back(std::move(connections_.front()));
      connections_.pop_front();
    }
  }
  End(ended);
}

void UnheardConnections::End(const std::deque<Connection>& connections) {
  for (const Connection& connection : connections) {
    shutdown(connection.fd, SHUT_RDWR);  // gRPC sees its end, and closes its own
    close(connection.fd);
  }
}

void UnheardConnections::Heard(absl::string_view context_peer) {
  int fd = -1;
  {
    MutexLock lock(mutex_);
    if (connections_.empty()) return;
    const std::string peer = PeerName(context_peer);
    auto found = std::find_if(connections_.begin(), connections_.end(),
                              [&](const Connection& each) { return each.peer == peer; });
    if (found == connections_.end()) return;
    fd = found->fd;
    connections_.erase(found);
  }
  close(fd);
}

absl::Time UnheardConnections::EndSilent(absl::Time now) {
  std::deque<Connection> over;
  absl::Time next = absl::InfiniteFuture();
  {
    MutexLock lock(mutex_);
    while (!connections_.empty() && connections_.front().until <= now) {
      over.push_back(std::move(connections_.front()));
      connections_.pop_front();
    }
    if (!connections_.empty()) next = connections_.front().until;
  }
  End(over);
  return next;
}

size_t UnheardConnections::size() const {
  MutexLock lock(mutex_);
  return connections_.size();
}

}  // namespace psd::carrier
