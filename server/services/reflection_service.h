#pragma once

// The service grpc.reflection.v1alpha.ServerReflection on the carrier's completion queue.

#include <grpcpp/server_builder.h>

#include <string>
#include <utility>
#include <vector>

#include "core/carrier/grpc/grpc_server_hook.h"
#include "proto/grpc_reflection/reflection.grpc.pb.h"

namespace psd::server {

// Owned by the server; outlives its carrier. A stream is answered one request at a time; the next
// request is read when the answer is written. The carrier's shutdown cancels open streams.
class ReflectionService {
 public:
  // `services` are the full names of the services to list.
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

  // Must be called before the server starts.
  void Register(grpc::ServerBuilder& builder) { builder.RegisterService(&service_); }
  // Starts to take calls. Called once.
  void Serve(carrier::ServiceHost& host);

 private:
  class Stream;

  const std::vector<std::string> services_;
  using Proto = grpc::reflection::v1alpha::ServerReflection;
  Proto::WithRawMethod_ServerReflectionInfo<Proto::Service> service_;
};

}  // namespace psd::server
