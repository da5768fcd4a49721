#pragma once

// Who may write which values now: steps that share a value run one after another, others side by
// side.

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

  // Calls `granted(claim)` once, now or from another's Release, without a lock held. Ids may repeat.
  ClaimId Claim(std::vector<GlobalId> ids, absl::AnyInvocable<void(ClaimId)> granted);
  // Gives up a granted claim, or one still waiting (its callback is then dropped, and true
  // returned). Must be called once for each granted claim.
  bool Release(ClaimId claim);

 private:
  struct Waiting {
    std::vector<GlobalId> ids;
    absl::AnyInvocable<void(ClaimId)> granted;
    int missing = 0;  // ids at whose queues it is not first
  };

  Mutex mutex_;  // leaf
  ClaimId next_ PSD_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<ClaimId, Waiting> claims_ PSD_GUARDED_BY(mutex_);
  absl::flat_hash_map<GlobalId, std::vector<ClaimId>> queues_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::store
