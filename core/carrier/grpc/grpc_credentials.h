#pragma once

// How connections are secured. Internal to whoever assembles a carrier.

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
