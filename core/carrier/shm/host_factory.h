#pragma once

// Creates the carrier of a worker: gRPC towards other hosts, shared memory within this one.

#include <memory>

#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/passed_descriptors.h"

namespace psd::carrier {

// Returns a carrier as host_carrier.h describes it. Both ways have the bounds, the memory and the
// patience of `options`. All links use gRPC if `shared_memory` is false, or if the system has no
// threads or descriptors for shared memory, which is logged. `logger` is shared with the worker.
// `descriptors` is as in ShmCarrierOptions; links of gRPC pass none. Errors: those of
// NewGrpcCarrier.
absl::StatusOr<std::shared_ptr<Carrier>> NewHostCarrier(
    const GrpcCarrierOptions& options, bool shared_memory, std::shared_ptr<Logger> logger,
    std::shared_ptr<DescriptorUser> descriptors = nullptr);

}  // namespace psd::carrier
