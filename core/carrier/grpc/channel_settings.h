#pragma once

// How psd tunes gRPC's channels and servers.

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "core/carrier/grpc/grpc_factory.h"

namespace psd::carrier {

inline constexpr char kExchangeMethod[] = "/psd.v1.Worker/Exchange";

// The largest network message that an honest peer sends under `options`.
int MaxNetworkMessageBytes(const GrpcCarrierOptions& options);

// How many bytes a connection lets the peer send before it has read them. All that come to a
// server are probed: what a connection is for is not known when it is made.
enum class Window {
  kFixed,   // 64 KiB and what a message that has begun still needs: the payload that several
            // connections bring in pieces stays small enough for the caches
  kProbed,  // what is on its way at a time, which gRPC finds out, up to megabytes: nothing waits
            // for the receiver's permission
};

// Channels with these arguments share no connection with any other.
grpc::ChannelArguments ArgumentsOfChannel(const GrpcCarrierOptions& options, Window window);

void ConfigureServer(const GrpcCarrierOptions& options, grpc::ServerBuilder& builder);

}  // namespace psd::carrier
