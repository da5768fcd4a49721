#pragma once

// Tensors on devices that this worker fetches in pieces: the caller's side.

#include <memory>

#include "core/base/clock.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/device_loans/device_loans.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/gate.h"

namespace psd::services {

// The parts of the worker that fetch pieces. They exist as long as `gate` is open.
struct PieceCollection {
  rpc::RpcAgent& agent;
  Executor& executor;  // puts the pieces together
  const Clock& clock;
  std::shared_ptr<rref::Gate> gate;                  // shared with the service
  std::shared_ptr<device_loans::DeviceLoans> loans;  // shared with the worker
};

// Whether the answer to "value.fetch" leaves out tensors.
bool LeavesOut(const rpc::Reply& reply);

// Returns the answer with everything that was left out, in memory of `device`, where null is the
// host. What the owner has lent is read in place, if that works; the rest is fetched. At most
// kPiecesUnderWay pieces are fetched at the same time. They are put together as they come, so on a
// device the copy of one piece overlaps with the receiving of the next ones. Errors: those of the
// calls; INVALID_ARGUMENT for an answer that makes no sense; RESOURCE_EXHAUSTED; those of the
// device. DEADLINE_EXCEEDED at `deadline` on the worker's clock.
Future<rpc::Reply> CollectPieces(const PieceCollection& uses, const rpc::Reply& reply,
                                 Device* device, absl::Time deadline);

// Tells the owner that nobody will fetch what it has left out of `reply`. Does nothing if it has
// left out nothing. Requires: `uses.gate` is open.
void GiveUpPieces(const PieceCollection& uses, const rpc::Reply& reply);

}  // namespace psd::services
