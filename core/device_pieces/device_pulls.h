#pragma once

// Tensors on devices that other workers fetch in pieces: the side of the worker that has them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/completion_threads.h"
#include "core/base/device.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/device_loans/device_loans.h"
#include "core/device_pieces/piece_methods.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/tensor/tensor.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::device_pieces {

// A message leaves out large tensors on devices, and this table keeps them. The receiver asks for
// them piece by piece, and asks for a few pieces at the same time. Each piece is copied to pinned
// memory of the host; the device's thread for completions sends it once it is there. So the copy of
// one piece overlaps with the sending of the piece before it, and no thread that reads the network
// waits for a device.
//
// Answers leave out versions of parameters, which stay pinned (LeaveOut). Such a pull belongs to
// the session of the call, and ends with it, or when the caller says so. Requests leave out
// gradients (Keep). Such a pull belongs to the worker to which the request goes, which may have no
// session here yet, and ends when the worker that sends the request says so.
//
// A piece keeps its pinned memory until it has been sent, so a caller that reads slowly keeps the
// pieces that it has asked for. Each session has kPinnedPerSession of them at most; further ones go
// through memory that counts in the budget of messages.
//
// A caller that reads the memory of a device in place is lent the tensors, too (DeviceLoans), and
// asks for no pieces of those that it can read. Thread-safe.
class DevicePulls {
 public:
  // A session with as many pulls that have not ended gets whole answers. A worker to which as many
  // requests are under way gets whole ones.
  static constexpr size_t kPerSession = 256;
  // The most pieces of a session in pinned memory: those of four pulls at the same time, or of one
  // with slow answers.
  static constexpr size_t kPinnedPerSession = kPiecesUnderWay + kMorePieces;
  // All requests together keep at most the kKeptFraction-th part of a device's budget.
  static constexpr size_t kKeptFraction = 4;

  // Registers the methods. The agent must not have started. `completions`, `loans` and the result
  // must outlive its calls.
  DevicePulls(rpc::RpcAgent& agent, CompletionThreads& completions,
              device_loans::DeviceLoans& loans);
  DevicePulls(const DevicePulls&) = delete;
  DevicePulls& operator=(const DevicePulls&) = delete;

  // Whether the caller may begin another pull. A few more may begin if several threads ask at once.
  bool HasRoom(const rpc::ServerCall& call) const PSD_EXCLUDES(mutex_);
  // Takes the buffers on devices out of the answer to `call`, and adds an attachment that names
  // them. They are those of `tensors`, in order, which alone keeps their elements alive. Does
  // nothing if there are none. If `offer` is not null and `may_lend`, lends those of them that may
  // be lent; then the answer may be sent only when the work that writes them is done. Returns a
  // function that takes back what was done here, for an answer that is not sent.
  std::function<void()> LeaveOut(rpc::ServerCall& call, rpc::Contents& answer,
                                 const std::vector<Tensor>& tensors, const v1::BorrowOffer* offer,
                                 bool may_lend) PSD_EXCLUDES(mutex_);
  // Keeps `buffers`, which are on `device`, until EndKept, and returns the id of their pull. The
  // default stream must have been ordered behind the work that writes them. Returns nothing if
  // kPerSession pulls of `receiver` have not ended, or too much is kept.
  std::optional<uint64_t> Keep(Incarnation receiver, const Device& device,
                               std::vector<Buffer> buffers) PSD_EXCLUDES(mutex_);
  // To be called once for each pull that Keep has returned.
  void EndKept(Incarnation receiver, const Device& device, uint64_t pull) PSD_EXCLUDES(mutex_);

 private:
  using Pull = std::shared_ptr<const std::vector<Buffer>>;  // shared with the pieces under way
  using Count = std::atomic<size_t>;
  struct OfSession {
    std::map<uint64_t, Pull> pulls;                              // by id
    std::shared_ptr<Count> pinned = std::make_shared<Count>(0);  // shared with the pieces there
  };
  using Sessions = std::map<GlobalId, OfSession>;
  // The pinned memory of a piece. Counts for its session until it is destroyed.
  class PinnedPlace;
  struct Found {
    Pull pull;
    std::shared_ptr<PinnedPlace> place;  // shared with the piece; null if the session has no more
  };

  // Stands for every session of a worker. (Epochs of sessions begin at 1.)
  static GlobalId AnySessionOf(Incarnation worker) { return {worker, 0}; }
  // Answers with one piece. If there is no pinned memory for it, or the session has as many pieces
  // there as it may, it is copied to other memory, and this thread waits for that. Errors:
  // NOT_FOUND for a pull that has ended; INVALID_ARGUMENT for bytes that were not left out; those
  // of the device.
  absl::Status ServePiece(const rpc::Answer<rpc::Contents>& answer, v1::PullPieceRequest request)
      PSD_EXCLUDES(mutex_);
  absl::Status ServeEndPull(const rpc::CallPtr& call, v1::PullEnd request);
  uint64_t Add(GlobalId session, Pull pull) PSD_EXCLUDES(mutex_);
  absl::StatusOr<Found> Find(GlobalId session, uint64_t id) PSD_EXCLUDES(mutex_);
  std::optional<Found> FindIn(GlobalId session, uint64_t id) PSD_REQUIRES(mutex_);
  // Takes a pull out of the table; empty if it is not there.
  std::map<uint64_t, Pull>::node_type Take(GlobalId session, uint64_t pull) PSD_REQUIRES(mutex_);
  void End(GlobalId session, uint64_t pull) PSD_EXCLUDES(mutex_);
  void OnSessionEnded(GlobalId session) PSD_EXCLUDES(mutex_);

  CompletionThreads& completions_;
  device_loans::DeviceLoans& loans_;
  mutable Mutex mutex_;  // leaf; pins are dropped outside
  uint64_t last_id_ PSD_GUARDED_BY(mutex_) = 0;
  // Each element has pulls, or had pieces in pinned memory when its last pull ended.
  Sessions sessions_ PSD_GUARDED_BY(mutex_);
  // The bytes that Keep keeps on each device.
  std::map<const Device*, size_t> kept_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::device_pieces
