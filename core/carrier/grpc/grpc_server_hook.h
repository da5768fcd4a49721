#pragma once

// Lets a daemon's own gRPC services (health, reflection, the unary service) share the carrier's
// port and its threads. Internal to whoever assembles a server: this header brings gRPC's types
// along.

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_builder.h>

#include <functional>

namespace psd::carrier {

// Where such services wait for calls. Thread-safe. Lives until the last counted call is gone.
class ServiceHost {
 public:
  // For requesting calls and for their operations, with tags that are CompletionTags.
  virtual grpc::ServerCompletionQueue* queue() = 0;
  // Counts a call, requested or under way, until the returned function is called: the last thing
  // that happens to it. Null: the carrier is quiet, no call may be requested any more.
  virtual std::function<void()> CountCall() = 0;
  // A call has come: its connection counts no longer as one from which nothing was heard.
  virtual void OnCall(const grpc::ServerContext& /*context*/) {}

 protected:
  ~ServiceHost() = default;
};

class GrpcServerHook {
 public:
  virtual ~GrpcServerHook() = default;

  // Called once in Listen, before the server starts: register asynchronous services (they must
  // outlive the carrier). No synchronous ones and none with callbacks: gRPC runs threads of its own
  // for those, which would read from the carrier's connections too and hand over what they got,
  // one wake-up later. Methods that nobody registers belong to the carrier.
  virtual void Configure(grpc::ServerBuilder& builder) = 0;

  // The server runs: request the first calls. Those that wait for a client complete with ok ==
  // false when the carrier shuts down, and it waits until all counted ones are gone.
  virtual void Started(ServiceHost& host) = 0;
};

}  // namespace psd::carrier
