#pragma once

// The entrance of requests: the decision whether a request is served, which is made before its
// payload is parsed.

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// The way by which a request comes.
enum class Entrance {
  kStream,  // over a connection with another worker
  kSelf,    // from this worker itself
  kUnary,   // from a client of the unary service
};

// The principal of a caller that has proven nothing.
inline constexpr absl::string_view kAnonymous = "anonymous";

// A request that asks to be served. It refers to what its maker keeps while it is decided on.
struct Arrival {
  Entrance by;
  absl::string_view principal;  // who has proven to ask; the caller's name proves nothing
  const PeerInfo& caller;       // a worker, or the name and the session of a client
  absl::string_view origin;     // the caller's end of its connection: "grpc 10.0.0.5:41234"
  absl::string_view method;     // "value.fetch", or the name of a method of the unary service
  MethodKind kind;              // kMutation also for a method that nobody knows
  size_t bytes;                 // of the message with its buffers
};

// Decides for all entrances of a worker. Thread-safe. Takes no lock, so that it may be asked under
// one.
class Admission {
 public:
  // `self` is the name of the worker.
  explicit Admission(std::string self) : self_(std::move(self)) {}

  // Decides on a request that is no copy of one that was decided on before: a copy gets the answer
  // to the first. While the worker drains, it serves itself, and clients that only read.
  // Errors: UNAVAILABLE (DrainingError); the request was not applied.
  absl::Status Admit(const Arrival& arrival) const {
    if (!draining_.load(std::memory_order_acquire)) return absl::OkStatus();
    return WhileDraining(arrival);
  }
  // May be repeated.
  void BeginDraining() { draining_.store(true, std::memory_order_release); }

 private:
  absl::Status WhileDraining(const Arrival& arrival) const;

  const std::string self_;
  std::atomic<bool> draining_{false};
};

}  // namespace psd::rpc
