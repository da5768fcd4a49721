#pragma once

// grpc.reflection.v1alpha.ServerReflection on the carrier's completion queue.

#include <grpcpp/server_builder.h>

#include <string>
#include <utility>
#include <vector>

#include "core/carrier/grpc/grpc_server_hook.h"
#include "proto/grpc_reflection/reflection.grpc.pb.h"

namespace psd::server {

// Belongs to whoever assembles a server and outlives its carrier. A stream is answered one request
// at a time; the next is read when the answer is written. The carrier's shutdown cancels streams
// that clients leave open.
class ReflectionService {
 public:
  // Full names of the services to be listed.
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

  // Before the server starts.
  void Register(grpc::ServerBuilder& builder) { builder.RegisterService(&service_); }
  // Takes calls from now on. Once.
  void Serve(carrier::ServiceHost& host);

 private:
  class Stream;

  const std::vector<std::string> services_;
  grpc::reflection::v1alpha::ServerReflection::AsyncService service_;
};

}  // namespace psd::server
