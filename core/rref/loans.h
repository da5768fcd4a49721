#pragma once

// Which sessions were given references that are not this worker's own, and have not yet said that
// the owner counts theirs. Pure bookkeeping, no clock, no lock, no message.

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "core/base/ids.h"
#include "core/base/recent_set.h"
#include "core/rref/owner_ledger.h"

namespace psd::rref {

// Confined to whoever locks it. The fork that each loan keeps is in the user ledger, by `child`.
class Loans {
 public:
  static constexpr size_t kMaxEndedSessions = 65'536;

  // False if that session has ended: it takes nothing any more.
  bool Add(SessionKey receiver, GlobalId child);
  // False if the session has no such loan.
  bool Return(SessionKey receiver, GlobalId child);
  // All that the session had; it gets no more.
  std::vector<GlobalId> EndSession(SessionKey receiver);
  void Clear();

  size_t size() const { return size_; }

 private:
  absl::flat_hash_map<SessionKey, absl::flat_hash_set<GlobalId>> sessions_;
  RecentSet<SessionKey> ended_{kMaxEndedSessions};
  size_t size_ = 0;
};

}  // namespace psd::rref
