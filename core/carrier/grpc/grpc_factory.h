#pragma once

// Creates the carrier that works between all hosts, over bidirectional gRPC streams.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/carrier/carrier.h"

namespace psd::carrier {

class WaitingLine;

class GrpcServerHook;  // grpc_server_hook.h

// One thread for every two cores, from 1 to 4.
inline int DefaultPollThreads() {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());  // 0: unknown
  return std::clamp(cores / 2, 1, 4);
}

struct GrpcCarrierOptions {
  Limits limits;
  // The budget that is charged for messages until their users release them. Null means a budget
  // without limit.
  std::shared_ptr<MemoryBudget> memory;  // shared with the worker
  // The time for which a message of more than 64 KiB waits for room in the budget. Its stream is
  // not read meanwhile. After that the message is refused, and its sender is told.
  absl::Duration room_patience = absl::Seconds(5);
  // The line in which messages wait for room in the budget. Null means that the carrier has its
  // own.
  std::shared_ptr<WaitingLine> line;  // shared by all carriers that receive into one budget
  // A link ends when its peer stops in the middle of a message, or reads nothing of what it is
  // sent, for between one and two times this. It also ends when a message that has memory here
  // brings less than a sixteenth of its pieces in this time while others wait for memory.
  absl::Duration stall_timeout = absl::Minutes(1);
  // The memory for received payloads of more than 64 KiB. Null means the budget's memory in
  // transit.
  std::shared_ptr<Allocator> allocator;  // shared with the other users of such memory
  // The number of threads that wait for the network and run the handlers. A carrier that has
  // dialled before it listens has twice as many. With several threads a link stays responsive while
  // another link's handler works, but each message that one thread takes wakes the next thread to
  // watch in its place, which costs more than it gains on a small machine.
  int poll_threads = DefaultPollThreads();
  // Starts the threads for dialling together with the carrier. Then NewGrpcCarrier reports if the
  // system refuses them, instead of the first Connect. For carriers that never listen.
  bool start_threads = false;
  // The number of streams per link for messages above 2 MiB, at most 16. Each has its own
  // connection (a file descriptor) and one piece under way at a time. Several of them fill each
  // other's gaps and use several cores.
  int bulk_streams = 4;
  // The bytes of one piece of a large message, from 64 KiB to 16 MiB.
  size_t piece_bytes = size_t{1} << 20;
  // A connection that is silent for keepalive_time is probed; if the probe is not answered within
  // keepalive_timeout, the connection is given up. So a peer that vanishes is noticed within the
  // sum of the two.
  absl::Duration keepalive_time = absl::Milliseconds(1500);
  absl::Duration keepalive_timeout = absl::Milliseconds(1000);
  // An accepted connection ends if its peer takes longer than this for TLS, its first settings and
  // its first call. If connections without a call take more than a quarter of the file descriptors,
  // the oldest of them end earlier. A further stream on which the peer sends nothing ends after
  // twice this time.
  absl::Duration handshake_timeout = absl::Seconds(5);
  // The time for which Close and Shutdown wait for a peer to read the messages that were accepted
  // before.
  absl::Duration linger = absl::Milliseconds(500);
  // Called when the port begins to refuse connections because file descriptors are short
  // (RESOURCE_EXHAUSTED naming use and limit), and when it accepts them again (OK). Runs on a
  // thread of the carrier. May be null.
  std::function<void(const absl::Status&)> on_refusing;
  // Adds services to the port that Listen opens. May be null.
  std::shared_ptr<GrpcServerHook> server_hook;  // shared with the owner of those services
};

// Errors: INVALID_ARGUMENT for options out of range; RESOURCE_EXHAUSTED when the system refuses a
// thread.
absl::StatusOr<std::shared_ptr<Carrier>> NewGrpcCarrier(const GrpcCarrierOptions& options);

}  // namespace psd::carrier
