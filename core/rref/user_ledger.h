#pragma once

// Which of other workers' values this worker holds: pure bookkeeping, no clock, no lock, no message.

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
  kFailed,     // it will never be confirmed: its creation failed or the session there ended
};

// What the holder of this ledger must do.
struct ForkRelease {
  std::string owner;
  GlobalId value;
  GlobalId fork;
};

// Confined to whoever locks it.
class UserLedger {
 public:
  // A fork that this worker holds from now on. Pending forks are confirmed or failed later.
  void Add(const std::string& owner, GlobalId value, GlobalId fork, ForkState state);

  // The owner counts the fork. If the holder has let go meanwhile, the release to send now.
  std::optional<ForkRelease> Confirm(GlobalId fork);
  // It never will. Nothing has to be sent... unless `may_exist`: then the release is sent all the
  // same, for a creation whose fate is unknown.
  std::optional<ForkRelease> Fail(GlobalId fork, absl::Status reason, bool may_exist);

  // The last handle is gone. A confirmed fork without children in flight is released now; a
  // pending one when it is confirmed; one with children when the last child has been accepted.
  std::optional<ForkRelease> Drop(GlobalId fork);

  // A copy of the fork is on its way to another worker under `child`: this fork stays until
  // ChildAccepted. (The rule that a parent is not deleted before the owner knows the child.)
  absl::Status AddChild(GlobalId fork, GlobalId child);
  std::optional<ForkRelease> ChildAccepted(GlobalId child);

  // Our session on `owner` is gone, and all forks there with it. Holders see `reason` from now on.
  void SessionLost(const std::string& owner, const absl::Status& reason);

  // OK: usable. Otherwise why the fork is not.
  absl::Status Check(GlobalId fork) const;
  ForkState state(GlobalId fork) const;

  size_t NumForks() const { return forks_.size(); }
  size_t NumPending() const;

 private:
  struct Fork {
    std::string owner;
    GlobalId value;
    ForkState state = ForkState::kPending;
    bool dropped = false;
    int children = 0;
    absl::Status failure;
  };
  std::optional<ForkRelease> ReleaseIfDue(GlobalId id);

  absl::flat_hash_map<GlobalId, Fork> forks_;
  absl::flat_hash_map<GlobalId, GlobalId> parents_;  // child in flight -> fork
};

}  // namespace psd::rref
