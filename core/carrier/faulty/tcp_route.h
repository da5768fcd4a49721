#pragma once

// A TCP proxy that delays bytes, and can break its connections as if the peer had died. For tests
// and benchmarks.

#include <netinet/in.h>

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/mutex.h"

namespace psd::carrier {

// Returns a listening socket on a free port of the loopback interface.
int ListenOnLoopback(int* port);

// Listens on the loopback interface and forwards every connection to a target, with one thread for
// each direction. In both directions, bytes arrive `one_way` after they were sent. At most 32 MiB
// are under way in each direction of a connection; then the sender waits. Thread-safe.
class TcpRoute {
 public:
  // `target` is an IPv4 address with a port, "127.0.0.1:7071". The target sees all connections as
  // coming from the address `source`, if that is given.
  explicit TcpRoute(const std::string& target, absl::Duration one_way = absl::ZeroDuration(),
                    const std::string& source = "0.0.0.0");
  ~TcpRoute();

  // Returns where the route listens, "127.0.0.1:41234".
  std::string address() const;

  // Returns the number of connections accepted so far.
  size_t connections() PSD_EXCLUDES(mutex_);

  // Breaks all connections and accepts no more.
  void Cut() PSD_EXCLUDES(mutex_);

 private:
  void Accept() PSD_EXCLUDES(mutex_);

  sockaddr_in target_ = {};
  sockaddr_in source_ = {};
  const absl::Duration one_way_;
  int port_ = 0;
  int listener_ = -1;
  Mutex mutex_;  // leaf
  bool cut_ PSD_GUARDED_BY(mutex_) = false;
  std::vector<int> fds_;            // guarded by mutex_ until acceptor_ has been joined
  std::vector<std::thread> pumps_;  // used by acceptor_ until it has been joined
  std::thread acceptor_;
};

}  // namespace psd::carrier
