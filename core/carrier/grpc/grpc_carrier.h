#pragma once

// The gRPC carrier: dials and listens, and stops its parts in the right order.

#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_core.h"
#include "core/carrier/grpc/grpc_factory.h"

namespace psd::carrier {

// Thread-safe.
class GrpcCarrier : public Carrier {
 public:
  explicit GrpcCarrier(const GrpcCarrierOptions& options);
  ~GrpcCarrier() override;

  std::string Name() const override { return "grpc"; }
  absl::StatusOr<std::string> Listen(const std::string& address, AcceptCallback accept) override
      PSD_EXCLUDES(mutex_);
  void Connect(const std::string& address, absl::Duration timeout,
               std::shared_ptr<LinkHandler> handler, ConnectCallback done) override;
  void Shutdown() override PSD_EXCLUDES(mutex_);

  // Returns RESOURCE_EXHAUSTED if the system refused a thread that the options ask for at once.
  absl::Status Start();

 private:
  struct Listener;

  absl::StatusOr<std::string> StartListener(const std::string& address, AcceptCallback accept,
                                            Listener* listener);

  const std::shared_ptr<GrpcCore> core_;  // shared with the links
  // Held during all of Listen and Shutdown.
  // before: ConnectionListener, GrpcCore, GrpcLink::send_mutex_, GrpcStream, Poller, TimerQueue,
  // UnheardConnections
  Mutex mutex_;
  std::unique_ptr<Listener> listener_ PSD_GUARDED_BY(mutex_);
  bool listened_ PSD_GUARDED_BY(mutex_) = false;
  bool stopped_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::carrier
