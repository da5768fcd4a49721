#pragma once

// Creates the carrier that works between processes of one host, through shared memory.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/memory_budget.h"
#include "core/carrier/carrier.h"
#include "core/carrier/passed_descriptors.h"
#include "core/carrier/shm/ring_format.h"

namespace psd::carrier {

class WaitingLine;

struct ShmCarrierOptions {
  Limits limits;
  // The budget that is charged for rings, and for messages until their users release them. Null
  // means a budget without limit.
  std::shared_ptr<MemoryBudget> memory;  // shared with the worker
  // The time for which a message of more than 64 KiB waits for room in the budget. Its ring is not
  // read meanwhile. After that time the message is refused, and its sender is told.
  absl::Duration room_patience = absl::Seconds(5);
  // The line in which messages wait for room in the budget. Null means a line of its own.
  std::shared_ptr<WaitingLine> line;  // shared by all carriers that receive into one budget
  // A link ends when a peer stops in the middle of a message, or accepts nothing of what it is
  // sent, for between one and two times this duration (as in GrpcCarrierOptions).
  absl::Duration stall_timeout = absl::Minutes(1);
  // The memory for received payloads of more than 64 KiB. Null means the budget's memory in
  // transit.
  std::shared_ptr<Allocator> allocator;  // shared with the other users of such memory
  // The number of threads that wait for peers and run the handlers. Each link belongs to one.
  int poll_threads = 1;
  // Whether a thread looks for messages for a while before it sleeps, if that has found messages
  // lately. Has no effect if the process may use only one processor.
  bool spin = true;
  // The sizes of the rings into which this end of a link writes. A link takes their sum from the
  // budget.
  RingSizes rings;
  // The most bytes of large messages that one process is lent (lending/lender.h) until it has
  // returned them. Further messages are copied, and so are all while more than half of the memory
  // in transit is in use. So a peer that returns nothing makes this worker keep at most so much,
  // and leaves memory to others. 0 means a quarter of the budget, or 4 GiB if that has no limit.
  size_t max_lent_bytes = 0;
  // The most bytes of segments of one process that are mapped to read lent messages; of all
  // processes together at most four times as much. This memory counts in the budget of its maker.
  // It takes address space here, and page tables of up to 1/512 of its size.
  size_t max_mapped_bytes = size_t{64} << 30;
  // A peer that is silent for keepalive_time is probed. If it does not answer within
  // keepalive_timeout, the link ends. So a process that is stopped is noticed within three times
  // keepalive_time, and keepalive_timeout. A process that ends is noticed at once.
  absl::Duration keepalive_time = absl::Milliseconds(1500);
  absl::Duration keepalive_timeout = absl::Milliseconds(1000);
  // An accepted socket is closed if its peer takes longer than this to introduce itself.
  absl::Duration handshake_timeout = absl::Seconds(5);
  // The time for which Close and Shutdown wait for a peer to take the messages that were accepted
  // before them.
  absl::Duration linger = absl::Milliseconds(500);
  // Passes descriptors to the processes at the other ends, and takes theirs. If it is null, nothing
  // is passed, and what comes is closed. Shared with the worker.
  std::shared_ptr<DescriptorUser> descriptors;
};

// The addresses of this carrier are Unix sockets: "unix:/a/path", or "unix:@name" for a name
// without a file (seen only within one network namespace). "unix:@" is any free name. Such a
// carrier may listen at several addresses.
// Errors: INVALID_ARGUMENT for options out of range; RESOURCE_EXHAUSTED when the system refuses a
// thread.
absl::StatusOr<std::shared_ptr<Carrier>> NewShmCarrier(const ShmCarrierOptions& options);

}  // namespace psd::carrier
