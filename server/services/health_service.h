#pragma once

// grpc.health.v1.Health on the carrier's completion queue: may calls be sent here?

#include <grpcpp/server_builder.h>

#include <string>

#include "core/carrier/grpc/grpc_server_hook.h"
#include "proto/grpc_health/health.grpc.pb.h"
#include "server/services/health_watches.h"

namespace psd::server {

// Belongs to whoever assembles a server and outlives its carrier.
//
// Check answers NOT_FOUND for a service that was never set; Watch tells SERVICE_UNKNOWN and goes
// on. Watches end with UNAVAILABLE when the carrier shuts down.
class HealthService {
 public:
  // Before the server starts.
  void Register(grpc::ServerBuilder& builder) { builder.RegisterService(&service_); }
  // Takes calls from now on. Once.
  void Serve(carrier::ServiceHost& host);
  // `service` as package.Service; "" is the server as a whole. Thread-safe, at any time.
  void SetServing(const std::string& service, bool serving);

 private:
  class Watch;

  grpc::health::v1::Health::AsyncService service_;
  HealthWatches watches_;  // of Watch*
};

}  // namespace psd::server
