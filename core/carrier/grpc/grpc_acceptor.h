#pragma once

// Reads the hello of each stream that a peer opens, and passes the stream to its link.

#include <memory>

#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_core.h"
#include "core/carrier/grpc/grpc_stream.h"
#include "core/carrier/grpc/unheard_connections.h"

namespace psd::carrier {

// Owns accepted streams until their first message, which must be a hello. A control stream makes a
// new link; any other stream joins the link whose token its hello has. Thread-safe.
class GrpcAcceptor : public StreamOwner, public std::enable_shared_from_this<GrpcAcceptor> {
 public:
  // Requires: `unheard` outlives all streams.
  GrpcAcceptor(std::shared_ptr<GrpcCore> core, UnheardConnections& unheard, AcceptCallback accept)
      : core_(std::move(core)), unheard_(unheard), accept_(std::move(accept)) {}

  // Keeps one pending request for a new stream on the service until the server shuts down.
  void AcceptNext(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue);

  void OnStarted(const std::shared_ptr<GrpcStream>&) override {}
  void OnRead(const std::shared_ptr<GrpcStream>& stream, const grpc::ByteBuffer& bytes) override;
  void OnWritten(const std::shared_ptr<GrpcStream>&) override {}
  void OnEnded(const std::shared_ptr<GrpcStream>&, const grpc::Status&) override {}

 private:
  void Greet(const std::shared_ptr<GrpcStream>& stream);

  const std::shared_ptr<GrpcCore> core_;  // shared with the carrier and its links
  UnheardConnections& unheard_;
  const AcceptCallback accept_;
};

}  // namespace psd::carrier
