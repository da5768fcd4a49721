#include "core/carrier/grpc/channel_settings.h"

#include <grpc/impl/codegen/grpc_types.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/carrier/frame.h"

namespace psd::carrier {
namespace {

constexpr int kMaxStreamsPerConnection = 1024;

using Settings = std::vector<std::pair<const char*, int>>;

// Returns the number of bytes that gRPC reads ahead of psd on one stream. No account counts them.
int LookaheadBytes(const GrpcCarrierOptions& options) {
  constexpr size_t kLeast = size_t{1} << 20;
  constexpr size_t kMost = size_t{64} << 20;
  const size_t budget = options.memory->limit_bytes();
  return static_cast<int>(budget == 0 ? kMost : std::clamp(budget / 128, kLeast, kMost));
}

// The defaults are for small calls over long distances. Large frames and a large window of streams
// triple the rate of large payloads on a fast network.
Settings CommonSettings(const GrpcCarrierOptions& options, Window window) {
  return {
      {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, (16 << 20) - 1},
      {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LookaheadBytes(options)},
      {GRPC_ARG_HTTP2_BDP_PROBE, window == Window::kProbed ? 1 : 0},
      {GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 << 10},
      {GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 1 << 20},
      {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MaxNetworkMessageBytes(options)},
      {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1},
      {GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0},
      // Received messages are not decompressed either, because a megabyte could become a gigabyte
      // in no account. Bit 0 stands for uncompressed messages.
      {GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0},
      {GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1},
      {GRPC_ARG_KEEPALIVE_TIME_MS,
       static_cast<int>(options.keepalive_time / absl::Milliseconds(1))},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
       static_cast<int>(options.keepalive_timeout / absl::Milliseconds(1))},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
  };
}

grpc::ChannelArguments ToArguments(const Settings& settings) {
  grpc::ChannelArguments arguments;
  for (const auto& [key, value] : settings) arguments.SetInt(key, value);
  // Links share no connections, so the end of a link ends its connections.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // core/rpc retries calls itself, because it knows which may be repeated.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  return arguments;
}

}  // namespace

int MaxNetworkMessageBytes(const GrpcCarrierOptions& options) {
  // Room for the longest table of buffer sizes, the largest piece, and a batch of small frames.
  size_t bytes = 8 * options.limits.max_buffers + kMaxPieceBytes + (size_t{1} << 20);
  return static_cast<int>(std::min<size_t>(bytes, std::numeric_limits<int>::max()));
}

size_t ReceiveQuotaBytes(const GrpcCarrierOptions& options) {
  constexpr size_t kLeastQuota = size_t{32} << 20;
  const size_t budget = options.memory->limit_bytes();
  return budget == 0 ? 0 : std::max(kLeastQuota, budget / 8);
}

size_t UnreadBytesOfLink(const GrpcCarrierOptions& options) {
  // At 10 Gbit/s, 16 MiB are what is under way in 13 ms.
  constexpr size_t kMost = size_t{64} << 20;
  const size_t quota = ReceiveQuotaBytes(options);
  return quota == 0 ? kMost : std::clamp(quota / 32, kMaxWholeBytes, kMost);
}

Window WindowForPieces(absl::Duration round_trip) {
  // With kFixed, four streams carry four pieces of 1 MiB per round trip: in three milliseconds that
  // is 1.4 GB/s, more than a network of 10 Gbit/s. The measured time includes that of busy
  // processors, and a near peer that was taken for a distant one would get half the rate.
  constexpr absl::Duration kNear = absl::Milliseconds(3);
  return round_trip < kNear ? Window::kFixed : Window::kProbed;
}

grpc::ChannelArguments ArgumentsOfChannel(const GrpcCarrierOptions& options, Window window) {
  return ToArguments(CommonSettings(options, window));
}

void ConfigureServer(const GrpcCarrierOptions& options, grpc::ServerBuilder& builder) {
  for (const auto& [key, value] : CommonSettings(options, Window::kProbed)) {
    builder.AddChannelArgument(key, value);
  }
  if (const size_t bytes = ReceiveQuotaBytes(options); bytes != 0) {
    // This is the last protection against peers that fill the buffers of many connections: gRPC
    // breaks streams off. Messages that wait for room stay below half of it (see
    // GrpcCore::KeepUnread).
    grpc::ResourceQuota quota("psd");
    quota.Resize(bytes);
    builder.SetResourceQuota(quota);
  }
  // The time until TLS is agreed and the peer's settings have come. The connection ends after it.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(options.handshake_timeout / absl::Milliseconds(1)));
  // gRPC holds memory for each call, and no account counts it. So the number of calls on one
  // connection is bounded, and further calls wait at the client. All links of a peer fit.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  // Otherwise two servers could listen on the same port and would share its connections at random.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int ping_interval = static_cast<int>(options.keepalive_time / absl::Milliseconds(2));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             std::min(ping_interval, 500));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
}

}  // namespace psd::carrier
