#include "core/carrier/shm/host_factory.h"

#include <utility>

#include "core/base/status.h"
#include "core/carrier/shm/host_carrier.h"
#include "core/carrier/shm/shm_factory.h"

namespace psd::carrier {

absl::StatusOr<std::shared_ptr<Carrier>> NewHostCarrier(const GrpcCarrierOptions& options,
                                                        std::shared_ptr<Logger> logger) {
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Carrier> network, NewGrpcCarrier(options));
  ShmCarrierOptions within;
  within.limits = options.limits;
  within.memory = options.memory;
  within.allocator = options.allocator;
  within.room_patience = options.room_patience;
  within.stall_timeout = options.stall_timeout;
  within.poll_threads = options.poll_threads;
  within.keepalive_time = options.keepalive_time;
  within.keepalive_timeout = options.keepalive_timeout;
  within.handshake_timeout = options.handshake_timeout;
  within.linger = options.linger;
  absl::StatusOr<std::shared_ptr<Carrier>> shm = NewShmCarrier(within);
  if (shm.ok()) return NewHostCarrier(std::move(network), *std::move(shm), std::move(logger));
  logger->Log(LogLevel::kWarning, "shared_memory_unused",
              "workers of this host are reached over the network",
              {{"why", shm.status().message()}});
  return network;
}

}  // namespace psd::carrier
