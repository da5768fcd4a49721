#pragma once

// The settings of gRPC's channels and servers.

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include "absl/time/time.h"
#include "core/carrier/grpc/grpc_factory.h"

namespace psd::carrier {

inline constexpr char kExchangeMethod[] = "/psd.v1.Worker/Exchange";

// Returns the largest network message that the protocol allows a peer to send under `options`.
int MaxNetworkMessageBytes(const GrpcCarrierOptions& options);

// Returns how many bytes of received network messages gRPC keeps for all connections that this
// worker accepts, before it breaks off streams. 0 means no limit.
size_t ReceiveQuotaBytes(const GrpcCarrierOptions& options);

// Returns how many bytes of large messages of one link gRPC may keep until this worker reads them,
// for each of the two kinds of streams that bring such messages (HelloFrame::max_unread_bytes).
size_t UnreadBytesOfLink(const GrpcCarrierOptions& options);

// The flow-control window of a connection: how many bytes the peer may send that this worker has
// not read. Connections that a server accepts are always kProbed, because their use is not known
// when they are made.
enum class Window {
  // 64 KiB, and the rest of a message that has begun. The peer learns of this rest only when the
  // first bytes have come, so each large message takes at least a round trip. In return, the
  // payload that comes in pieces over several connections stays small enough for the caches.
  kFixed,
  kProbed,  // the bandwidth-delay product, which gRPC measures and which may become tens of
            // megabytes. The sender waits for the receiver only at UnreadBytesOfLink
};

// Returns the window for connections that bring pieces of large messages. `round_trip` is the time
// in which the peer has answered a message.
Window WindowForPieces(absl::Duration round_trip);

// A channel with these arguments shares its connection with no other channel.
grpc::ChannelArguments ArgumentsOfChannel(const GrpcCarrierOptions& options, Window window);

void ConfigureServer(const GrpcCarrierOptions& options, grpc::ServerBuilder& builder);

}  // namespace psd::carrier
