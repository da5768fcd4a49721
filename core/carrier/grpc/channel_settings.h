#pragma once

// How psd tunes gRPC's channels and servers.

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "core/carrier/grpc/grpc_factory.h"

namespace psd::carrier {

inline constexpr char kExchangeMethod[] = "/psd.v1.Worker/Exchange";

// The largest network message that an honest peer sends under `options`.
int MaxNetworkMessageBytes(const GrpcCarrierOptions& options);

// Channels with these arguments share no connection with any other.
grpc::ChannelArguments ControlChannelArguments(const GrpcCarrierOptions& options);
grpc::ChannelArguments BulkChannelArguments(const GrpcCarrierOptions& options);

void ConfigureServer(const GrpcCarrierOptions& options, grpc::ServerBuilder& builder);

}  // namespace psd::carrier
