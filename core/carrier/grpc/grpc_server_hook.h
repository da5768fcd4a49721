#pragma once

// Lets a daemon's own gRPC services (health, reflection, the unary service) share the carrier's
// port and its threads. For code that assembles a server only: this header includes gRPC's types.

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_builder.h>

#include <functional>

namespace psd::carrier {

// The carrier as these services see it. Thread-safe. It lives until the last counted call has
// ended.
class ServiceHost {
 public:
  // The queue for requesting calls and for their operations. All tags must be CompletionTags.
  virtual grpc::ServerCompletionQueue* queue() = 0;
  // Counts a call, requested or under way, until the returned function is called, which must be the
  // last use of the call. Returns null if the carrier is quiet; then no call may be requested any
  // more.
  virtual std::function<void()> CountCall() = 0;
  // Must be called when a call has come. Its connection then no longer counts as one without a
  // call.
  virtual void OnCall(const grpc::ServerContext& /*context*/) {}

 protected:
  ~ServiceHost() = default;
};

class GrpcServerHook {
 public:
  virtual ~GrpcServerHook() = default;

  // Registers asynchronous services, which must outlive the carrier. Called once in Listen, before
  // the server starts. Synchronous and callback services must not be registered: gRPC runs its own
  // threads for them, which would also read from the carrier's connections and pass each message on
  // with one more wake-up. All methods that are not registered belong to the carrier.
  virtual void Configure(grpc::ServerBuilder& builder) = 0;

  // Requests the first calls. Called when the server runs. When the carrier shuts down, calls that
  // still wait for a client complete with ok == false, and the carrier waits until all counted
  // calls are gone.
  virtual void Started(ServiceHost& host) = 0;
};

}  // namespace psd::carrier
