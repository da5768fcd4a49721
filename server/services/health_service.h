#pragma once

// The service grpc.health.v1.Health on the carrier's completion queue. It says whether this server
// accepts calls.

#include <grpcpp/server_builder.h>

#include <string>

#include "core/carrier/grpc/grpc_server_hook.h"
#include "proto/grpc_health/health.grpc.pb.h"
#include "server/services/health_watches.h"

namespace psd::server {

// Owned by the server; outlives its carrier.
//
// For a service that was never set, Check answers NOT_FOUND, and Watch sends SERVICE_UNKNOWN and
// continues. Watches end with UNAVAILABLE when the carrier shuts down.
class HealthService {
 public:
  // Must be called before the server starts.
  void Register(grpc::ServerBuilder& builder) { builder.RegisterService(&service_); }
  // Starts to take calls. Called once.
  void Serve(carrier::ServiceHost& host);
  // Sets the state of a service, named as package.Service, or of another part of the server; "" is
  // the server as a whole.
  // Thread-safe; may be called at any time.
  void SetServing(const std::string& service, bool serving);

 private:
  class Watch;

  using Proto = grpc::health::v1::Health;
  Proto::WithRawMethod_Watch<Proto::WithRawMethod_Check<Proto::Service>> service_;
  HealthWatches watches_;  // of Watch*
};

}  // namespace psd::server
