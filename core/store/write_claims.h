#pragma once

// Decides which step may write which values now: steps that share a value run one after the other,
// all others at the same time.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"

namespace psd::store {

// Grants claims of sets of ids. A claim gets all its ids or none; claims that share an id are
// granted in the order in which they were made. Nothing blocks: a claim that must wait is granted
// by a callback. Thread-safe. There are no deadlocks, because a claim waits only for earlier ones.
class WriteClaims {
 public:
  using ClaimId = uint64_t;
  using Granted = absl::AnyInvocable<void(ClaimId)>;

  // Calls `granted(claim)` once, now or from another claim's Release, without a lock held. Ids may
  // repeat; sorted ids are fastest. `granted` must not wait for another claim: all callbacks that
  // one Release causes run one after the other on its thread, including those that are granted from
  // within `granted`. (So a long queue needs no deep stack.)
  ClaimId Claim(std::vector<GlobalId> ids, Granted granted) PSD_EXCLUDES(mutex_);
  // Gives up a claim. Must be called once for each granted claim. May be called for a waiting
  // claim: then its callback is dropped and the result is true.
  bool Release(ClaimId claim) PSD_EXCLUDES(mutex_);

 private:
  struct Pending {
    std::vector<GlobalId> ids;  // sorted, no two equal
    Granted granted;            // null once it was called
    size_t missing = 0;         // the number of ids in whose queues it is not first
    bool queued = false;        // false while it is the only claim, which is in no queue
  };
  struct Grant {
    ClaimId claim = 0;
    Granted granted;
  };
  // The claims of one id, in order. Most ids have one claim and no waiting claims.
  struct Queue {
    ClaimId first = 0;
    std::unique_ptr<std::deque<ClaimId>> rest;  // null or not empty
  };

  // Appends `claim` to the queues of its ids.
  void Enqueue(ClaimId claim, Pending& pending) PSD_REQUIRES(mutex_);
  // Removes `claim` from the queue of `id`. The next claim in the queue may then be granted.
  void LeaveQueue(ClaimId claim, GlobalId id, std::vector<Grant>& grants) PSD_REQUIRES(mutex_);
  static void Run(std::vector<Grant> grants);

  Mutex mutex_;  // leaf
  ClaimId next_ PSD_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<ClaimId, Pending> claims_ PSD_GUARDED_BY(mutex_);
  // The queues of all claimed ids. A claim that is the only one is put into a queue only when the
  // next claim comes.
  absl::flat_hash_map<GlobalId, Queue> queues_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::store
