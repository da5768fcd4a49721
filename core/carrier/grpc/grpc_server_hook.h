#pragma once

// Lets a daemon's own gRPC services (health, reflection, the unary service) share the carrier's
// port. Internal to whoever assembles a server: this header brings gRPC's types along.

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

namespace psd::carrier {

class GrpcServerHook {
 public:
  virtual ~GrpcServerHook() = default;

  // Called once in Listen, before the server starts: register services (synchronous or callback;
  // they must outlive the carrier). Methods that nobody registers belong to the carrier.
  virtual void Configure(grpc::ServerBuilder& builder) = 0;

  // The server runs. `server` lives until the carrier's Shutdown.
  virtual void Started(grpc::Server& server) { static_cast<void>(server); }
};

}  // namespace psd::carrier
