#pragma once

// Keeps the loans of this worker. A loan is a reference to another worker's value that was passed
// on in an answer, until its receiver says that the owner counts its fork. Pure bookkeeping: no
// clock, no lock, no messages.

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "core/base/ids.h"
#include "core/base/recent_set.h"
#include "core/rref/session_key.h"

namespace psd::rref {

// Confined to the holder of the caller's lock. The user ledger has the fork that each loan keeps,
// by `child`, the id of the receiver's fork.
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
