#pragma once

// Reads the hello of each stream that a peer opens, and passes the stream to its link.

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_core.h"
#include "core/carrier/grpc/grpc_stream.h"
#include "core/carrier/grpc/unheard_connections.h"

namespace psd::carrier {

// Owns accepted streams until their first message, which must be a hello. A control stream makes a
// new link; any other stream joins the link whose token its hello has. The streams that wait for
// their hello are bounded in number for each connection, in memory, and in time. Thread-safe.
class GrpcAcceptor : public StreamOwner, public std::enable_shared_from_this<GrpcAcceptor> {
 public:
  // The most streams without a hello that one connection may have. A peer of psd has one.
  static constexpr size_t kSilentOfConnection = 16;

  // Requires: `unheard` outlives all streams.
  GrpcAcceptor(std::shared_ptr<GrpcCore> core, UnheardConnections& unheard, AcceptCallback accept)
      : core_(std::move(core)), unheard_(unheard), accept_(std::move(accept)) {}

  // Keeps one pending request for a new stream on the service until the server shuts down.
  void AcceptNext(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue);

  void OnStarted(const std::shared_ptr<GrpcStream>&) override {}
  void OnRead(const std::shared_ptr<GrpcStream>& stream, const grpc::ByteBuffer& bytes) override;
  void OnWritten(const std::shared_ptr<GrpcStream>&) override {}
  void OnEnded(const std::shared_ptr<GrpcStream>& stream, const grpc::Status&) override {
    Forget(stream.get());
  }

 private:
  void Greet(const std::shared_ptr<GrpcStream>& stream) PSD_EXCLUDES(mutex_);
  // Counts a stream whose hello has not come. Errors: RESOURCE_EXHAUSTED if its connection has too
  // many, or there is no memory for it.
  absl::Status Admit(const GrpcStream& stream) PSD_EXCLUDES(mutex_);
  // To be called when the hello has come, or the stream has ended. Does nothing for a stream that
  // is not counted.
  void Forget(const GrpcStream* stream) PSD_EXCLUDES(mutex_);

  const std::shared_ptr<GrpcCore> core_;  // shared with the carrier and its links
  UnheardConnections& unheard_;
  const AcceptCallback accept_;

  struct Silent {
    std::string connection;
    MemoryCharge charge;
  };
  Mutex mutex_;  // leaf
  // The streams whose hello has not come, and how many of them each connection has.
  absl::flat_hash_map<const GrpcStream*, Silent> silent_ PSD_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, size_t> silent_of_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::carrier
