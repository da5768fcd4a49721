#pragma once

// Connections that were taken and from which nothing was heard yet: how many there may be.

#include <sys/socket.h>

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"

namespace psd::carrier {

// How gRPC calls the peer of a connection: "10.0.0.5:41234", "[::1]:41234". For what accept4 gave,
// and for what a call's context says ("ipv4:10.0.0.5:41234", "ipv6:%5B::1%5D:41234").
std::string PeerName(const sockaddr_storage& address);
std::string PeerName(absl::string_view context_peer);

// A connection counts from when it is taken until the first call on it, which psd's own peers make
// at once. One without a call is ended when its `patience` is over, however far its handshake has
// come; beyond a bound the oldest is ended earlier, to make room. (gRPC would end connections
// without calls by GRPC_ARG_MAX_CONNECTION_IDLE_MS, but also those of clients that rest between two
// calls, and a call that comes at that moment would fail.) Thread-safe.
class UnheardConnections {
 public:
  explicit UnheardConnections(absl::Duration patience) : patience_(patience) {}
  ~UnheardConnections();
  UnheardConnections(const UnheardConnections&) = delete;
  UnheardConnections& operator=(const UnheardConnections&) = delete;

  // `fd` was taken from `peer`; it stays the caller's. Ends the oldest of more than `bound`.
  void Add(int fd, std::string peer, size_t bound, absl::Time now) PSD_EXCLUDES(mutex_);
  // A call came from that peer.
  void Heard(absl::string_view context_peer) PSD_EXCLUDES(mutex_);
  // Ends those whose patience is over; when to ask again.
  absl::Time EndSilent(absl::Time now) PSD_EXCLUDES(mutex_);
  size_t size() const PSD_EXCLUDES(mutex_);

 private:
  struct Connection {
    int fd;  // a duplicate, so that the number stays this connection's
    std::string peer;
    absl::Time until;
  };
  static void End(const std::deque<Connection>& connections);

  const absl::Duration patience_;
  mutable Mutex mutex_;                                        // leaf
  std::deque<Connection> connections_ PSD_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace psd::carrier
