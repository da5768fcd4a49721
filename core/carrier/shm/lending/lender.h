#pragma once

// The lending half of a link: messages that the other end reads where they are.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/executor.h"
#include "core/base/memory_budget.h"
#include "core/base/mutex.h"
#include "core/base/shared_segment.h"
#include "core/carrier/carrier.h"
#include "core/carrier/frame.h"
#include "core/carrier/shm/lending/lease_book.h"
#include "core/carrier/shm/lending/note_box.h"
#include "core/carrier/shm/lending/quota.h"
#include "core/carrier/shm/lending/shown_segments.h"
#include "core/carrier/shm/traffic_sum.h"

namespace psd::carrier {

// Decides which messages are lent, and keeps them until they are returned. A message that cannot be
// lent now is sent as a copy instead, so every call may fail without harm. If the link ends while
// the other end may still read, the segments are retired (SharedSegment::Retire). Thread-safe.
class Lender {
 public:
  // `notes` hears of segments that are gone. `account` is charged for the bookkeeping of messages
  // to `address`. Messages are lent while at most half of its memory is in use, because what a
  // reader keeps stays charged. `quota` bounds what is lent at a time. `unmapper` drops the
  // messages that are out when the link ends.
  Lender(std::shared_ptr<NoteBox> notes, std::shared_ptr<MemoryAccount> account,
         std::string address, std::shared_ptr<Quota> quota, std::shared_ptr<Executor> unmapper);

  // Whether a buffer of `message` is large enough to be lent and lies in a segment.
  static bool MayLend(const Message& message);

  struct Lent {
    uint64_t lease = 0;
    FrameEncoder frame;
    size_t copied_bytes = 0;  // of buffers in the frame, and of those that were gathered for it
  };
  // Passes the descriptor of a segment to the other end without waiting. Returns whether it did.
  using Pass = absl::FunctionRef<bool(const SharedSegment&)>;
  // Takes `message` over and returns the frame to be sent for it. Returns nullopt, and leaves the
  // message to the caller, if it cannot be lent; buffers may be copies by then (loose_buffers.h).
  // `pass` is called with no lock held, for each segment that the other end does not know.
  std::optional<Lent> Lend(Message& message, Pass pass) PSD_EXCLUDES(mutex_);
  // Ends a lease whose frame was not sent.
  void Cancel(uint64_t lease) PSD_EXCLUDES(mutex_);

  // What the other end says. Errors: INVALID_ARGUMENT if it says something that cannot be.
  absl::Status OnReturned(const std::vector<uint64_t>& leases) PSD_EXCLUDES(mutex_);
  // Returns the message, which must be sent in another way.
  absl::StatusOr<Message> OnDeclined(const DeclinedFrame& declined) PSD_EXCLUDES(mutex_);
  absl::Status OnForgotten(uint64_t segment) PSD_EXCLUDES(mutex_);

  // Returns those of the segments, which are gone, that the other end must be told about.
  std::vector<uint64_t> OnGone(const std::vector<uint64_t>& segments) PSD_EXCLUDES(mutex_);

  // Nothing is lent any more. Retires the segments of all leases that are out, and lets `unmapper`
  // drop the messages, because the system needs 0.4 to 0.5 s for each GiB of segments that become
  // free. If `unmapper` refuses, the calling thread drops them.
  void End() PSD_EXCLUDES(mutex_);

  // The bytes of all buffers that were ever lent, and of those that are lent now. Take no lock.
  uint64_t lent_bytes() const { return lent_bytes_.bytes(); }
  uint64_t bytes_now() const { return bytes_now_.load(std::memory_order_relaxed); }

 private:
  struct Plan;
  static std::optional<Plan> MakePlan(const Message& message);
  void NoteBytesNow() PSD_REQUIRES(mutex_) {
    bytes_now_.store(book_.bytes(), std::memory_order_relaxed);
  }
  bool PassAll(const Plan& plan, const std::vector<uint64_t>& fresh, Pass pass)
      PSD_EXCLUDES(mutex_);

  const std::shared_ptr<NoteBox> notes_;          // shared with the link
  const std::shared_ptr<MemoryAccount> account_;  // shared with the other links
  const std::string address_;
  const std::shared_ptr<Executor> unmapper_;  // shared with the other links and with mappings

  mutable Mutex mutex_;  // leaf
  bool ended_ PSD_GUARDED_BY(mutex_) = false;
  LeaseBook book_ PSD_GUARDED_BY(mutex_);
  ShownSegments shown_ PSD_GUARDED_BY(mutex_);
  TrafficSum lent_bytes_;  // added to with mutex_
  std::atomic<uint64_t> bytes_now_{0};
};

}  // namespace psd::carrier
