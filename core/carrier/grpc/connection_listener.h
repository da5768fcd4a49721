#pragma once

// Accepts connections at an address and passes them to a server.
//
// gRPC's own listener stops for ever once the process runs out of file descriptors, which anybody
// can cause by opening connections. This listener reserves some descriptors for the rest of the
// process, refuses connections beyond that, and accepts again when descriptors are free. It bounds
// the share of connections on which nothing has come yet; the oldest of those end first.

#include <netdb.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/carrier/grpc/unheard_connections.h"

namespace psd::carrier {

// Owned by the carrier that listens. Start and Stop are called once each, in this order; the
// destructor calls Stop if it was not called.
class ConnectionListener {
 public:
  // Takes over `fd`, a connected non-blocking socket.
  using OnConnection = std::function<void(int fd)>;
  // Called with RESOURCE_EXHAUSTED, naming use and limit, when connections begin to be refused, and
  // with OK when they are accepted again.
  using OnChange = std::function<void(const absl::Status&)>;

  // Listens at all addresses of `address` ("host:port"; port 0 takes any free one); no connection
  // is accepted yet. A connection ends if its data is not acknowledged for `user_timeout`. A peer
  // has `handshake_timeout` for its handshake and its first call. Errors: UNAVAILABLE naming the
  // address and the system's reason; RESOURCE_EXHAUSTED when the system refuses a thread.
  static absl::StatusOr<std::unique_ptr<ConnectionListener>> Bind(const std::string& address,
                                                                  absl::Duration user_timeout,
                                                                  absl::Duration handshake_timeout);
  ~ConnectionListener();
  ConnectionListener(const ConnectionListener&) = delete;
  ConnectionListener& operator=(const ConnectionListener&) = delete;

  int port() const { return port_; }
  // The connections on which nothing has come yet.
  UnheardConnections& unheard() { return unheard_; }

  // Both are called on the listener's own thread. `on_change` may be null.
  void Start(OnConnection on_connection, OnChange on_change) PSD_EXCLUDES(mutex_);
  // After it returns, no callback begins or runs.
  void Stop() PSD_EXCLUDES(mutex_);

 private:
  explicit ConnectionListener(absl::Duration handshake_timeout) : unheard_(handshake_timeout) {}
  // Listens at one address. Returns an empty text, or the system's reason for a failure.
  std::string Add(const addrinfo& target, absl::Duration user_timeout);
  // Runs on the listener's thread. It first waits for Start.
  void Run() PSD_EXCLUDES(mutex_);
  bool AwaitStart() PSD_EXCLUDES(mutex_);
  void AcceptAll(int listening);
  void Refusing(const absl::Status& why);

  UnheardConnections unheard_;
  std::vector<int> sockets_;
  int port_ = 0;
  int wake_ = -1;               // an eventfd, written once, to stop
  OnConnection on_connection_;  // used by the thread only, once it has started
  OnChange on_change_;          // the same
  bool refusing_ = false;       // used by the thread only
  // Used by the thread only. True if there is no descriptor left even to refuse a connection with.
  bool exhausted_ = false;
  enum class Phase { kBound, kStarted, kStopped };
  Mutex mutex_;  // leaf
  CondVar changed_;
  Phase phase_ PSD_GUARDED_BY(mutex_) = Phase::kBound;
  std::thread thread_;
};

}  // namespace psd::carrier
