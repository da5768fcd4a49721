#pragma once

// Who holds which of this worker's values: pure bookkeeping, no clock, no lock, no message.
//
// A fork is one holder's copy of a reference. The ledger counts forks per value and remembers under
// whose session each lives. Every event may be repeated and may come in any order; see PROTOCOL.md
// for the invariants.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "core/base/ids.h"
#include "core/base/recent_set.h"

namespace psd::rref {

// A session of one peer's incarnation here.
struct SessionKey {
  Incarnation peer = 0;
  uint64_t epoch = 0;
  friend bool operator==(const SessionKey& a, const SessionKey& b) {
    return a.peer == b.peer && a.epoch == b.epoch;
  }
  template <typename H>
  friend H AbslHashValue(H h, const SessionKey& k) {
    return H::combine(std::move(h), k.peer, k.epoch);
  }
};

// Confined to whoever locks it.
class OwnerLedger {
 public:
  // Forks remembered as deleted, per session, and sessions remembered as ended. An event that comes
  // back after more than so many others would be believed; rpc applies each message once and keeps
  // far fewer than these unacknowledged.
  static constexpr size_t kMaxDeletedForks = 65'536;
  static constexpr size_t kMaxEndedSessions = 65'536;

  // `session` holds `fork` of `value`. Repeats, and forks deleted before they were added, change
  // nothing. False if the session has ended or the fork was deleted before: the value gained no
  // holder.
  bool AddFork(GlobalId value, GlobalId fork, SessionKey session);

  // The fork is gone. Returns true if that was the value's last fork: it may be freed unless
  // something else roots it. A session can only delete its own forks.
  bool DeleteFork(GlobalId value, GlobalId fork, SessionKey session);

  // Everything that the session held is gone; later events of it are refused. Returns the values
  // that lost their last fork.
  std::vector<GlobalId> EndSession(SessionKey session);

  size_t ForkCount(GlobalId value) const;
  size_t NumValues() const { return forks_.size(); }  // with at least one fork
  size_t NumForks() const { return num_forks_; }

 private:
  struct Session {
    absl::btree_map<GlobalId, GlobalId> forks;      // fork -> value
    RecentSet<GlobalId> deleted{kMaxDeletedForks};  // also deletes that overtook their add
  };

  // True if `value` has no fork left.
  bool DropOne(GlobalId value);

  // Ordered, because ids ascend: a million forks fill the nodes of a tree, where a hash table would
  // be half empty, and would stop everybody while it grows.
  absl::btree_map<GlobalId, uint32_t> forks_;  // value -> number of forks
  absl::flat_hash_map<SessionKey, Session> sessions_;
  RecentSet<SessionKey> ended_{kMaxEndedSessions};
  size_t num_forks_ = 0;
};

}  // namespace psd::rref
