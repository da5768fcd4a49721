#pragma once

// Tensors on devices of another worker that this worker fetches in pieces.

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/device.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/device_loans/device_loans.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/gate.h"

namespace psd::v1 {
class LeftOut;
}  // namespace psd::v1

namespace psd::device_pieces {

// Counts the pieces that may be under way because answers are slow, until their messages are whole;
// at most kMorePieces.
using MorePieces = std::atomic<size_t>;

// The parts of the worker that fetch pieces. They exist as long as `gate` is open.
struct PieceCollection {
  rpc::RpcAgent& agent;
  Executor& executor;  // puts the pieces together
  const Clock& clock;
  std::shared_ptr<rref::Gate> gate;                  // shared with the layer that fetches
  std::shared_ptr<device_loans::DeviceLoans> loans;  // shared with the worker
  std::shared_ptr<MorePieces> more;                  // shared by all fetches of the layer
};

// Whether the answer to "value.fetch" leaves out tensors.
bool LeavesOut(const rpc::Reply& reply);

// Returns the answer with everything that was left out, in memory of `device`, where null is the
// host. What the owner has lent is read in place, if that works; the rest is fetched, several
// pieces at the same time (kPiecesUnderWay, kMorePieces). They are put together as they come, so on
// a device the copy of one piece overlaps with the receiving of the next ones. Errors: those of the
// calls; INVALID_ARGUMENT for an answer that makes no sense; RESOURCE_EXHAUSTED; those of the
// device. DEADLINE_EXCEEDED at `deadline` on the worker's clock.
Future<rpc::Reply> CollectPieces(const PieceCollection& uses, const rpc::Reply& reply,
                                 Device* device, absl::Time deadline);

// Tells the owner that nobody will fetch what it has left out of `reply`. Does nothing if it has
// left out nothing. Requires: `uses.gate` is open.
void GiveUpPieces(const PieceCollection& uses, const rpc::Reply& reply);

// Parses the attachment kLeftOutTag of a message of `sender`, and checks it against the message's
// buffers. Errors: INVALID_ARGUMENT.
absl::StatusOr<v1::LeftOut> ParseLeftOut(const std::string& sender, const std::string& attachment,
                                         const std::vector<Buffer>& buffers);

// As CollectPieces, for the request of `call`, whose sender ends the pull itself and lends nothing
// in `left_out`: returns the buffers with those that were left out, until the deadline of the call.
// CANCELLED when the call is.
Future<std::vector<Buffer>> CollectRequestPieces(const PieceCollection& uses,
                                                 const std::shared_ptr<rpc::ServerCall>& call,
                                                 const v1::LeftOut& left_out, Device* device);

}  // namespace psd::device_pieces
