#pragma once

// Decides whether a request is served, before its payload is parsed.

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

// How a request came in.
enum class Entrance {
  kStream,  // over a connection with another worker
  kSelf,    // from this worker itself
  kUnary,   // from a client of the unary service
};

// The principal of a caller that has not proven its identity.
inline constexpr absl::string_view kAnonymous = "anonymous";

// A request that is to be decided on. Its members refer to data that must live until the decision.
struct Arrival {
  Entrance by;
  absl::string_view principal;  // the proven identity of the caller; its name proves nothing
  const PeerInfo& caller;       // a worker, or the name and the session of a client
  absl::string_view origin;     // the caller's end of its connection: "grpc 10.0.0.5:41234"
  absl::string_view method;     // "value.fetch", or the name of a method of the unary service
  MethodKind kind;              // kMutation also for an unknown method
  size_t bytes;                 // size of the message with its buffers
};

// Decides for all entrances of a worker. Thread-safe. Takes no lock, so it may be called under one.
class Admission {
 public:
  // `self` is the name of the worker.
  explicit Admission(std::string self) : self_(std::move(self)) {}

  // Decides on a request. A copy of an earlier request is not decided on again, but gets the answer
  // to the first copy. While the worker drains, it serves only itself and clients that only read.
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
