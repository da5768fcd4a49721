#pragma once

// Creates the carrier of a worker: gRPC towards other hosts, shared memory within this one.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/passed_descriptors.h"

namespace psd::carrier {

// Which workers of this host are reached through shared memory.
struct SharedMemoryUse {
  bool on = true;
  // A folder (CheckSharedFolder) in which workers of other network namespaces find this one, and
  // this one finds them: a volume of several containers. Empty: only those of its own namespace.
  // One that CheckSharedFolderIsOwn refuses is not used, which is logged.
  std::string folder;
  // As RuntimeOptions::advertise: others dial this address, so it names the socket in the folder.
  std::string advertise;
};

// Returns a carrier as host_carrier.h describes it. Both ways have the bounds, the memory and the
// patience of `options`. All links use gRPC if shared memory is off, or if the system has no
// threads or descriptors for it, which is logged. `logger` is shared with the worker. `descriptors`
// is as in ShmCarrierOptions; links of gRPC pass none. Errors: those of NewGrpcCarrier.
absl::StatusOr<std::shared_ptr<Carrier>> NewHostCarrier(
    const GrpcCarrierOptions& options, const SharedMemoryUse& shared_memory,
    std::shared_ptr<Logger> logger, std::shared_ptr<DescriptorUser> descriptors = nullptr);

}  // namespace psd::carrier
