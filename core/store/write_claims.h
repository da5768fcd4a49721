#pragma once

// Who may write which values now: steps that share a value run one after another, others side by
// side.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"

namespace psd::store {

// Grants sets of ids, all or none, in the order of asking wherever two sets meet. Nothing blocks:
// who must wait is called back. Thread-safe. No two sets can deadlock: a claim waits only for
// earlier ones.
class WriteClaims {
 public:
  using ClaimId = uint64_t;
  using Granted = absl::AnyInvocable<void(ClaimId)>;

  // Calls `granted(claim)` once, now or from another's Release, without a lock held. Ids may
  // repeat; sorted ones are fastest. `granted` must not wait for another claim: what one Release
  // grants runs one after another on its thread, and what is granted from within `granted` runs
  // after it returns (so that a long queue needs no deep stack).
  ClaimId Claim(std::vector<GlobalId> ids, Granted granted) PSD_EXCLUDES(mutex_);
  // Gives up a granted claim, or one still waiting (its callback is then dropped, and true
  // returned). Must be called once for each granted claim.
  bool Release(ClaimId claim) PSD_EXCLUDES(mutex_);

 private:
  struct Pending {
    std::vector<GlobalId> ids;  // sorted, no two equal
    Granted granted;            // null once it was called
    size_t missing = 0;         // ids in whose queues it is not first
    bool queued = false;        // false: it is the only claim there is, and in no queue yet
  };
  struct Grant {
    ClaimId claim = 0;
    Granted granted;
  };
  // In the order of asking. Most ids have a writer and nobody waiting.
  struct Queue {
    ClaimId first = 0;
    std::unique_ptr<std::deque<ClaimId>> rest;  // null or not empty
  };

  // Puts `claim` last into the queues of its ids.
  void Enqueue(ClaimId claim, Pending& pending) PSD_REQUIRES(mutex_);
  // Takes `claim` out of the queue of `id`; the next one in it may become free to go.
  void LeaveQueue(ClaimId claim, GlobalId id, std::vector<Grant>& grants) PSD_REQUIRES(mutex_);
  static void Run(std::vector<Grant> grants);

  Mutex mutex_;  // leaf
  ClaimId next_ PSD_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<ClaimId, Pending> claims_ PSD_GUARDED_BY(mutex_);
  // Who writes or waits to write an id. A claim that is alone needs none: it is queued when the
  // next one comes.
  absl::flat_hash_map<GlobalId, Queue> queues_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::store
