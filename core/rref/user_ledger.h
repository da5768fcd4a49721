#pragma once

// Which of other workers' values this worker holds: pure bookkeeping, no clock, no lock, no
// message.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/ids.h"

namespace psd::rref {

enum class ForkState {
  kPending,    // the owner has not yet confirmed that it counts the fork
  kConfirmed,  // the owner counts it
  kFailed,     // of no use: its creation failed, the session there ended, or all was released
};

// What the holder of this ledger must do.
struct ForkRelease {
  std::string owner;
  Incarnation owner_incarnation = 0;  // 0: not known, it never answered
  GlobalId value;
  GlobalId fork;
};

// Confined to whoever locks it. Events for forks that it does not (or no longer) hold are ignored.
class UserLedger {
 public:
  // A fork that this worker holds from now on. Pending forks are confirmed or failed later, by the
  // answer to the call that creates them.
  void Add(const std::string& owner, Incarnation owner_incarnation, GlobalId value, GlobalId fork,
           ForkState state);

  // The owner counts the fork. If the holder has let go meanwhile, the release to send now.
  std::optional<ForkRelease> Confirm(GlobalId fork, Incarnation owner_incarnation);
  // It never will. Nothing has to be sent... unless `may_exist`: then the release is sent all the
  // same, for a creation whose fate is unknown.
  std::optional<ForkRelease> Fail(GlobalId fork, absl::Status reason, bool may_exist);

  // The last handle is gone. A confirmed fork without children in flight is released now; a
  // pending one when it is confirmed; one with children when the last child has been accepted.
  std::optional<ForkRelease> Drop(GlobalId fork);

  // A copy of the fork is on its way to another worker under `child`: this fork stays until
  // ChildAccepted. (The rule that a parent is not deleted before the owner knows the child.)
  // Errors: what Check says; ALREADY_EXISTS for a child id that is in flight.
  absl::Status AddChild(GlobalId fork, GlobalId child);
  std::optional<ForkRelease> ChildAccepted(GlobalId child);

  // Our session on this life of `owner` is gone, and all confirmed forks there with it. Holders see
  // `reason` from now on. Pending forks wait for their call, which tells their fate.
  void SessionLost(const std::string& owner, Incarnation owner_incarnation,
                   const absl::Status& reason);

  // Ends all forks, handles or not; holders see `reason`. Returns what the owners must be told.
  std::vector<ForkRelease> ReleaseAll(const absl::Status& reason);

  // At most `limit` of the forks that still have a handle.
  std::vector<ForkRelease> Held(size_t limit) const;

  // OK: usable (a pending one too: uses wait for its creation). Otherwise why the fork is not.
  absl::Status Check(GlobalId fork) const;
  // Whether Check is OK for every fork that is held here.
  bool AllUsable() const { return num_failed_ == 0; }
  // kFailed for a fork that is not held.
  ForkState state(GlobalId fork) const;

  size_t NumForks() const { return forks_.size(); }
  size_t NumPending() const { return num_pending_; }
  size_t NumChildrenInFlight() const { return parents_.size(); }

 private:
  struct Fork {
    std::string owner;
    Incarnation owner_incarnation = 0;
    GlobalId value;
    ForkState state = ForkState::kPending;
    bool counted = false;  // the owner counts it, or may: it must be released once
    bool dropped = false;
    int children = 0;
    absl::Status failure;
  };
  using Forks = absl::flat_hash_map<GlobalId, Fork>;
  void SetState(Fork& fork, ForkState state);
  void Erase(Forks::iterator it);
  // Lets go of what nobody needs any more.
  std::optional<ForkRelease> ReleaseIfDue(GlobalId id);

  Forks forks_;
  absl::flat_hash_map<GlobalId, GlobalId> parents_;  // child in flight -> fork
  size_t num_pending_ = 0;
  size_t num_failed_ = 0;
};

}  // namespace psd::rref
