#pragma once

// Bounds the number of accepted connections on which no call has come yet.

#include <sys/socket.h>

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"

namespace psd::carrier {

// Return the peer's address in one form, "10.0.0.5:41234" or "[::1]:41234". The input is the
// address that accept4 gave, or the peer of a call's context ("ipv4:10.0.0.5:41234",
// "ipv6:%5B::1%5D:41234").
std::string PeerName(const sockaddr_storage& address);
std::string PeerName(absl::string_view context_peer);

// A connection counts from the time when it is accepted until the first call on it, which psd's own
// peers make at once. A connection without a call is ended after `patience`, however far its
// handshake has come; if there are more than a bound, the oldest is ended earlier. (gRPC's own
// setting for this, GRPC_ARG_MAX_CONNECTION_IDLE_MS, would also end connections of clients that
// pause between two calls, and a call that comes at that moment would fail.) Thread-safe.
class UnheardConnections {
 public:
  explicit UnheardConnections(absl::Duration patience) : patience_(patience) {}
  ~UnheardConnections();
  UnheardConnections(const UnheardConnections&) = delete;
  UnheardConnections& operator=(const UnheardConnections&) = delete;

  // Adds the accepted connection `fd`, which still belongs to the caller. If there are more than
  // `bound`, ends the oldest.
  void Add(int fd, std::string peer, size_t bound, absl::Time now) PSD_EXCLUDES(mutex_);
  // Removes the connection of a peer from which a call came.
  void Heard(absl::string_view context_peer) PSD_EXCLUDES(mutex_);
  // Ends the connections whose patience is over. Returns when to call this again.
  absl::Time EndSilent(absl::Time now) PSD_EXCLUDES(mutex_);
  size_t size() const PSD_EXCLUDES(mutex_);

 private:
  struct Connection {
    int fd;  // a duplicate, so that the number cannot come to mean another connection
    std::string peer;
    absl::Time until;
  };
  static void End(const std::deque<Connection>& connections);

  const absl::Duration patience_;
  mutable Mutex mutex_;                                        // leaf
  std::deque<Connection> connections_ PSD_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace psd::carrier
