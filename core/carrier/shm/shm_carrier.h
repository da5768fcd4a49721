#pragma once

// The shared-memory carrier: dials and listens, and stops its parts in the right order.

#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/carrier/carrier.h"
#include "core/carrier/shm/shm_core.h"
#include "core/carrier/shm/shm_factory.h"

namespace psd::carrier {

// Thread-safe.
class ShmCarrier : public Carrier {
 public:
  explicit ShmCarrier(const ShmCarrierOptions& options);
  ~ShmCarrier() override;

  std::string Name() const override { return "shm"; }
  absl::StatusOr<std::string> Listen(const std::string& address, AcceptCallback accept) override
      PSD_EXCLUDES(mutex_);
  void Connect(const std::string& address, absl::Duration timeout,
               std::shared_ptr<LinkHandler> handler, ConnectCallback done) override;
  SharedTraffic shared_traffic() const override;
  void Shutdown() override PSD_EXCLUDES(mutex_);

  // Errors: RESOURCE_EXHAUSTED: the system refused a thread.
  absl::Status Start() { return core_->Start(); }

 private:
  class Listener;

  const std::shared_ptr<ShmCore> core_;  // shared with the links
  // Held during all of Listen and Shutdown.
  // before: ShmCore, ShmLink, ShmPoller, ThreadPool, TimerQueue
  Mutex mutex_;
  std::vector<std::shared_ptr<Listener>> listeners_ PSD_GUARDED_BY(mutex_);  // with their pollers
  bool stopped_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::carrier
