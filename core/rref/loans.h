#pragma once

// The loans of this worker. If this worker passes a reference to another worker's value on in an
// answer, it keeps its own fork as a loan until the receiver says that the owner counts the
// receiver's fork. Pure bookkeeping: no clock, no lock, no messages.

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "core/base/ids.h"
#include "core/base/recent_set.h"
#include "core/rref/session_key.h"

namespace psd::rref {

// Confined to the code that holds the caller's lock. `child` is the id of the receiver's fork; the
// user ledger knows which fork the loan keeps for it.
class Loans {
 public:
  static constexpr size_t kMaxEndedSessions = 65'536;

  // Adds a loan to the session `receiver`. Returns false, and adds nothing, if that session has
  // ended.
  bool Add(SessionKey receiver, GlobalId child);
  // Ends a loan. Returns false if the session has no such loan.
  bool Return(SessionKey receiver, GlobalId child);
  // Ends the session. Returns all loans that it had; Add refuses further ones.
  std::vector<GlobalId> EndSession(SessionKey receiver);
  void Clear();

  size_t size() const { return size_; }

 private:
  absl::flat_hash_map<SessionKey, absl::flat_hash_set<GlobalId>> sessions_;
  RecentSet<SessionKey> ended_{kMaxEndedSessions};
  size_t size_ = 0;
};

}  // namespace psd::rref
