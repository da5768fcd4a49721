#pragma once

// Tensors on devices that other workers fetch in pieces: the owner's side.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/base/completion_threads.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/device_loans/device_loans.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/services/values/value_methods.h"
#include "core/tensor/tensor.h"

namespace psd::v1 {
class BorrowOffer;
class PullPieceRequest;
}  // namespace psd::v1

namespace psd::services {

// A fetch leaves large tensors on devices out of its answer, and this table keeps them pinned. The
// caller asks for them piece by piece, and asks for a few pieces at the same time. Each piece is
// copied to pinned memory of the host; the device's thread for completions sends it once it is
// there. So the copy of one piece overlaps with the sending of the piece before it, and no thread
// that reads the network waits for a device. A pull ends when its caller says so, or with the
// caller's session.
//
// A piece keeps its pinned memory until it has been sent, so a caller that reads slowly keeps the
// pieces that it has asked for. Each session has kPinnedPerSession of them at most; further ones go
// through memory that counts in the budget of messages.
//
// A caller that reads the memory of a device in place is lent the tensors, too (DeviceLoans), and
// asks for no pieces of those that it can read. Thread-safe.
class DevicePulls {
 public:
  // A session with as many pulls that have not ended gets whole answers.
  static constexpr size_t kPerSession = 256;
  // The most pieces of a session in pinned memory: those of four pulls at the same time.
  static constexpr size_t kPinnedPerSession = 4 * kPiecesUnderWay;

  // `completions` and `loans` must outlive the agent's calls.
  DevicePulls(CompletionThreads& completions, device_loans::DeviceLoans& loans)
      : completions_(completions), loans_(loans) {}

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
  // Answers with one piece. If there is no pinned memory for it, or the session has as many pieces
  // there as it may, it is copied to other memory, and this thread waits for that. Errors:
  // NOT_FOUND for a pull that has ended; INVALID_ARGUMENT for bytes that were not left out; those
  // of the device.
  absl::Status ServePiece(const rpc::Answer<rpc::Contents>& answer,
                          const v1::PullPieceRequest& request) PSD_EXCLUDES(mutex_);
  void End(GlobalId session, uint64_t pull) PSD_EXCLUDES(mutex_);
  void OnSessionEnded(GlobalId session) PSD_EXCLUDES(mutex_);

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

  uint64_t Add(GlobalId session, Pull pull) PSD_EXCLUDES(mutex_);
  absl::StatusOr<Found> Find(GlobalId session, uint64_t id) PSD_EXCLUDES(mutex_);

  CompletionThreads& completions_;
  device_loans::DeviceLoans& loans_;
  mutable Mutex mutex_;  // leaf; pins are dropped outside
  uint64_t last_id_ PSD_GUARDED_BY(mutex_) = 0;
  // Each element has pulls, or had pieces in pinned memory when its last pull ended.
  Sessions sessions_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::services
