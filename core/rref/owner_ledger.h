#pragma once

// The owner's ledger: who holds references to this worker's values. Pure bookkeeping: no clock, no
// lock, no messages.
//
// A fork is one holder's copy of a reference. The ledger counts the forks of each value, and files
// each fork under the session of its holder. Every event may be repeated and may come in any order;
// see PROTOCOL.md for the invariants.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/ids.h"
#include "core/base/memory_budget.h"
#include "core/base/recent_set.h"
#include "core/base/stepwise_charge.h"
#include "core/rref/session_key.h"

namespace psd::rref {

// Confined to the code that holds the caller's lock.
class OwnerLedger {
 public:
  // The number of deleted forks that are remembered for each session, and the number of ended
  // sessions. If an event were repeated after more than this many others, it would be taken for a
  // new one. This does not happen: rpc applies each message once, and keeps far fewer messages
  // unacknowledged.
  static constexpr size_t kMaxDeletedForks = 65'536;
  static constexpr size_t kMaxEndedSessions = 65'536;
  // The number of forks of a session that are covered by the charge of the session itself.
  static constexpr size_t kOwnForks = 64;

  // Forks of peers beyond those that the charge of a session covers are charged to `memory`; if it
  // is null, they are not charged.
  explicit OwnerLedger(std::shared_ptr<MemoryAccount> memory = nullptr)
      : memory_(std::move(memory)) {}

  // Charges memory for one more fork. To be called before AddFork. Errors: RESOURCE_EXHAUSTED.
  absl::Status MakeRoom(SessionKey session);

  // Counts `fork` of `value`, held under `session`. A repeated call changes nothing. Returns
  // whether the fork is counted now: false if the session has ended, if the fork was deleted before
  // (perhaps by a delete that overtook this call), or if the fork belongs to another value.
  bool AddFork(GlobalId value, GlobalId fork, SessionKey session);

  // Deletes a fork. Returns true if it was the value's last fork; the value may then be freed
  // unless something else keeps it. A session can only delete its own forks.
  bool DeleteFork(GlobalId value, GlobalId fork, SessionKey session);

  // Deletes all forks of the session and refuses its later events. Returns the values that lost
  // their last fork.
  std::vector<GlobalId> EndSession(SessionKey session);

  size_t ForkCount(GlobalId value) const;
  size_t NumValues() const { return forks_.size(); }  // the number of values with at least one fork
  size_t NumForks() const { return num_forks_; }

 private:
  static constexpr size_t kForkBytes = 64;
  struct Session {
    absl::btree_map<GlobalId, GlobalId> forks;      // fork -> value
    RecentSet<GlobalId> deleted{kMaxDeletedForks};  // includes forks deleted before they were added
    StepwiseCharge charge{size_t{16} << 10, kOwnForks* kForkBytes};  // covers both
  };
  absl::Status MakeRoomIn(Session& session);

  // Removes one fork from the count of `value`. Returns true if it has no forks left.
  bool DropOne(GlobalId value);

  const std::shared_ptr<MemoryAccount> memory_;  // shared with the worker
  // This is a tree because ids ascend, so a million forks fill its nodes. A hash table would be
  // half empty, and would delay all calls while it grows.
  absl::btree_map<GlobalId, uint32_t> forks_;  // value -> number of forks
  absl::flat_hash_map<SessionKey, Session> sessions_;
  RecentSet<SessionKey> ended_{kMaxEndedSessions};
  size_t num_forks_ = 0;
};

}  // namespace psd::rref
