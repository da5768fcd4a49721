#include "core/carrier/shm/host_factory.h"

#include <memory>
#include <utility>

#include "core/base/shared_folder.h"
#include "core/base/status.h"
#include "core/carrier/shm/host_carrier.h"
#include "core/carrier/shm/shm_factory.h"
#include "core/carrier/waiting_line.h"

namespace psd::carrier {
namespace {

absl::StatusOr<std::shared_ptr<Carrier>> NewShmLike(const GrpcCarrierOptions& options,
                                                    std::shared_ptr<DescriptorUser> descriptors) {
  ShmCarrierOptions within;
  within.limits = options.limits;
  within.memory = options.memory;
  within.allocator = options.allocator;
  within.room_patience = options.room_patience;
  within.line = options.line;
  within.stall_timeout = options.stall_timeout;
  within.poll_threads = options.poll_threads;
  within.keepalive_time = options.keepalive_time;
  within.keepalive_timeout = options.keepalive_timeout;
  within.handshake_timeout = options.handshake_timeout;
  within.linger = options.linger;
  within.descriptors = std::move(descriptors);
  return NewShmCarrier(within);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Carrier>> NewHostCarrier(
    const GrpcCarrierOptions& given, const SharedMemoryUse& shared_memory,
    std::shared_ptr<Logger> logger, std::shared_ptr<DescriptorUser> descriptors) {
  GrpcCarrierOptions options = given;
  if (options.line == nullptr) options.line = std::make_shared<WaitingLine>();
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<Carrier> network, NewGrpcCarrier(options));
  if (!shared_memory.on) {
    return NewHostCarrier(std::move(network),
                          absl::FailedPreconditionError("shared memory is off at this worker"),
                          /*folder=*/nullptr, std::move(logger));
  }
  absl::StatusOr<std::shared_ptr<Carrier>> shm = NewShmLike(options, std::move(descriptors));
  if (!shm.ok()) {
    logger->Log(LogLevel::kWarning, "shared_memory_unused",
                "workers of this host are reached over the network",
                {{"why", shm.status().message()}});
  }
  std::unique_ptr<const SocketFolder> folder;
  if (!shared_memory.folder.empty()) {
    const absl::Status own = CheckSharedFolderIsOwn(shared_memory.folder);
    if (own.ok()) {
      folder = std::make_unique<SocketFolder>(shared_memory.folder, shared_memory.advertise);
    } else {
      logger->Log(LogLevel::kWarning, "shared_memory_unused",
                  "workers of other network namespaces are reached over the network",
                  {{"why", own.message()}});
    }
  }
  return NewHostCarrier(std::move(network), std::move(shm), std::move(folder), std::move(logger));
}

}  // namespace psd::carrier
