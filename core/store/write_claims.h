#pragma once

// Decides which step may write which values now: steps that share a value run one after the other,
// all others at the same time. Steps that are work of one stream of a device only have to be added
// to it one after the other.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/base/stream.h"

namespace psd::store {

// The most claims that hold an id together. Each of them keeps the memory of its step.
inline constexpr size_t kMaxTogether = 4;

// Grants claims of sets of ids. A claim gets all its ids or none; claims that share an id are
// granted in the order in which they were made. Nothing blocks: a claim that must wait is granted
// by a callback. Thread-safe. There are no deadlocks, because a claim waits only for earlier ones.
//
// A claim that shares an id with an earlier one waits until that one is released. If both are for
// work of the same stream, it waits only until the earlier one is handed on: the stream keeps the
// order then. So the holder of a claim without a stream holds its ids alone.
class WriteClaims {
 public:
  using ClaimId = uint64_t;
  using Granted = absl::AnyInvocable<void(ClaimId)>;

  // Calls `granted(claim)` once, now or from another claim's Release or HandOn, without a lock
  // held. Ids may repeat; sorted ids are fastest. `granted` must not wait for another claim: all
  // callbacks that one call causes run one after the other on its thread, including those that are
  // granted from within `granted`. (So a long queue needs no deep stack.) If `stream` is not null,
  // the holder does nothing else with the ids but adding work to this stream, which must outlive
  // the claim.
  ClaimId Claim(std::vector<GlobalId> ids, Granted granted, const Stream* stream = nullptr)
      PSD_EXCLUDES(mutex_);
  // To be called when the holder of the claim has added all its work to the claim's stream. Claims
  // of the same stream may be granted from now on, but at most kMaxTogether hold an id together;
  // all others wait until this one is released. Does nothing if that has happened already.
  // Requires: the claim has a stream.
  void HandOn(ClaimId claim) PSD_EXCLUDES(mutex_);
  // Gives up a claim. Must be called once for each granted claim. May be called for a waiting
  // claim: then its callback is dropped and the result is true.
  bool Release(ClaimId claim) PSD_EXCLUDES(mutex_);

 private:
  struct Pending {
    std::vector<GlobalId> ids;  // sorted, no two equal
    Granted granted;            // null once it was called
    const Stream* stream = nullptr;
    size_t missing = 0;      // the number of ids in whose queues it must still wait
    bool queued = false;     // false while it is the only claim, which is in no queue
    bool handed_on = false;  // see HandOn
  };
  struct Grant {
    ClaimId claim = 0;
    Granted granted;
  };
  // The claims of one id, in order. Most ids have one claim and no waiting claims.
  struct Queue {
    ClaimId first = 0;
    std::unique_ptr<std::deque<ClaimId>> rest;  // null or not empty
    size_t together = 1;  // how many claims, from the first on, need not wait in this queue

    size_t size() const { return rest == nullptr ? 1 : 1 + rest->size(); }
    ClaimId operator[](size_t place) const { return place == 0 ? first : (*rest)[place - 1]; }
  };

  // Appends `claim` to the queues of its ids.
  void Enqueue(ClaimId claim, Pending& pending) PSD_REQUIRES(mutex_);
  // Removes `claim` from the queue of `id`. The claims behind it may then be granted.
  void LeaveQueue(ClaimId claim, GlobalId id, std::vector<Grant>& grants) PSD_REQUIRES(mutex_);
  // Whether the first claim that waits in the queue need not wait any longer. Requires: one waits.
  bool MayJoin(const Queue& queue) const PSD_REQUIRES(mutex_);
  void LetNextJoin(Queue& queue, std::vector<Grant>& grants) PSD_REQUIRES(mutex_);
  static void Run(std::vector<Grant> grants);

  Mutex mutex_;  // leaf
  ClaimId next_ PSD_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<ClaimId, Pending> claims_ PSD_GUARDED_BY(mutex_);
  // The queues of all claimed ids. A claim that is the only one is put into a queue only when the
  // next claim comes.
  absl::flat_hash_map<GlobalId, Queue> queues_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::store
