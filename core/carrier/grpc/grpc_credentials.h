#pragma once

// The credentials that secure connections. For code that assembles a carrier only: this header
// includes gRPC's types.

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

namespace psd::carrier {

// Thread-safe.
class GrpcCredentials {
 public:
  virtual ~GrpcCredentials() = default;
  virtual std::shared_ptr<grpc::ChannelCredentials> ForChannel() = 0;
  virtual std::shared_ptr<grpc::ServerCredentials> ForServer() = 0;
};

}  // namespace psd::carrier
