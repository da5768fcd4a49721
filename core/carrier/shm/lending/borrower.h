#pragma once

// The borrowing half of a link: messages that are read where the other end has them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/executor.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/carrier/assembler.h"
#include "core/carrier/carrier.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/introduction.h"
#include "core/carrier/shm/lending/borrowed_message.h"
#include "core/carrier/shm/lending/note_box.h"
#include "core/carrier/shm/lending/quota.h"

namespace psd::carrier {

// Maps the segments of the other end, and makes messages of the buffers that it lends. A message
// whose segment has not been passed yet is parked, and nothing else waits for it.
//
// OnSegment is called by one thread at a time, the others by the thread that has the link's turn,
// and both may run at once. Errors, after which the link must end: INVALID_ARGUMENT if the other
// end breaks the protocol.
class Borrower {
 public:
  // `notes` gets the leases that are returned. Mappings count in the quota of the peer and in that
  // of all peers until `unmapper` has removed them (ShareMapping). `memory` is for those parts of
  // messages that come in frames, and is charged for the tables of lent buffers.
  Borrower(std::shared_ptr<NoteBox> notes, std::shared_ptr<Quota> of_peer,
           std::shared_ptr<Quota> of_carrier, std::shared_ptr<Executor> unmapper,
           ReceiveMemory memory);

  // Maps a segment that the other end has passed. `fd` is not valid if this process had no
  // descriptor left for it. A segment that cannot be mapped for lack of anything is remembered as
  // declined. Returns true if the other end is to be told that the segment is forgotten.
  absl::StatusOr<bool> OnSegment(const PassedSegment& passed, const UniqueFd& fd)
      PSD_EXCLUDES(mutex_);
  // Whether OnSegment was called since TakeReady.
  bool HasNews() const { return news_.load(std::memory_order_relaxed); }

  // What became of a message. At most one of the members is set, and none if it is parked.
  struct Outcome {
    std::optional<Message> message;
    size_t borrowed_bytes = 0;              // of its buffers that were lent
    std::optional<RefusedMessage> refused;  // its lease is returned
    std::optional<DeclinedFrame> declined;  // to be sent
  };
  absl::StatusOr<Outcome> OnLent(const LentFrame& frame) PSD_EXCLUDES(mutex_);
  // Returns the outcomes of parked messages whose last segment has come.
  absl::StatusOr<std::vector<Outcome>> TakeReady() PSD_EXCLUDES(mutex_);

  // Returns true if the other end is to be told now that the segment is forgotten.
  absl::StatusOr<bool> OnGone(uint64_t segment) PSD_EXCLUDES(mutex_);
  // To be called when the returned leases that `notes` held are sent, by any thread.
  void CountReturned(size_t leases) { leases_.fetch_sub(leases); }

  // To be called at even intervals. Errors: DEADLINE_EXCEEDED if a message was parked during the
  // whole time since the previous call.
  absl::Status LookForStall();

  // Drops parked messages, and the segments that no message lies in.
  void End() PSD_EXCLUDES(mutex_);

 private:
  struct Parked {
    uint64_t lease = 0;
    Message message;  // its lent buffers are empty
    std::vector<LentBuffer> buffers;
    MemoryCharge charge;  // for what is kept besides the message
    bool seen = false;    // by LookForStall
  };
  struct Segment {
    enum class State { kMapped, kDeclined, kGone };  // kGone: gone before its descriptor came
    State state = State::kMapped;
    std::shared_ptr<const PeerMapping> mapping;  // shared with messages
  };

  absl::StatusOr<MemoryCharge> ChargeTable(size_t buffers) const;
  // Returns null if the segment cannot be mapped.
  absl::StatusOr<std::shared_ptr<const PeerMapping>> Map(const PassedSegment& passed,
                                                         const UniqueFd& fd);
  // Returns the outcome of a message, or nullopt, with `parked` unchanged, if a segment has not
  // come yet.
  absl::StatusOr<std::optional<Outcome>> Settle(Parked& parked) PSD_EXCLUDES(mutex_);

  const std::shared_ptr<NoteBox> notes_;      // shared with the link and with messages
  const std::shared_ptr<Quota> of_peer_;      // shared with mappings
  const std::shared_ptr<Quota> of_carrier_;   // shared with mappings and other links
  const std::shared_ptr<Executor> unmapper_;  // as of_carrier_
  const ReceiveMemory memory_;
  std::atomic<bool> news_{false};
  std::atomic<size_t> leases_{0};  // those that are out, and those of parked messages
  std::vector<Parked> parked_;     // used only by the thread that has the turn

  Mutex mutex_;  // leaf
  bool ended_ PSD_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<uint64_t, Segment> segments_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::carrier
