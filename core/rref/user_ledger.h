#pragma once

// The user's ledger: the forks of other workers' values that this worker holds. Pure bookkeeping:
// no clock, no lock, no messages.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "core/base/ids.h"
#include "core/base/recent_set.h"
#include "core/rref/session_key.h"

namespace psd::rref {

enum class ForkState {
  kPending,    // the owner has not yet confirmed that it counts the fork
  kConfirmed,  // the owner counts the fork
  kFailed,     // unusable: its creation failed, the session there ended, or everything was released
};

// A release that the caller must send, so that the owner deletes this fork.
struct ForkRelease {
  std::string owner;
  Incarnation owner_incarnation = 0;  // 0 if not known, because the owner never answered
  GlobalId value;
  GlobalId fork;
};

// Events for forks that are not held, or no longer held, are ignored. Confined to the code that
// holds the caller's lock.
class UserLedger {
 public:
  // The number of lost sessions that are remembered. An answer that is handled after so many losses
  // of other sessions would be taken for one of a live session.
  static constexpr size_t kMaxLostSessions = 65'536;

  // Adds a pending fork that this worker holds from now on. It is confirmed or failed later, by the
  // answer to the call that asked for it. `owner_incarnation` is 0 if it is not known yet.
  void Add(const std::string& owner, Incarnation owner_incarnation, GlobalId value, GlobalId fork);

  // To be called when the owner counts the fork under this worker's session there. If that session
  // has been lost, the fork was lost with it, and fails. Returns the release to send if the last
  // handle is gone already.
  std::optional<ForkRelease> Confirm(GlobalId fork, SessionKey session);
  // To be called when the owner will never confirm the fork. If `may_exist`, the owner may count it
  // all the same, as after a creation whose outcome is unknown; the release to send is then
  // returned.
  std::optional<ForkRelease> Fail(GlobalId fork, absl::Status reason, bool may_exist);

  // To be called when the last handle is gone. A confirmed fork without children in flight is
  // released now, a pending one when it is confirmed, and one with children when the last child has
  // been accepted.
  std::optional<ForkRelease> Drop(GlobalId fork);

  // To be called when a copy of the fork is on its way to another worker as fork `child`. This fork
  // stays until ChildAccepted, so that a parent is never deleted before the owner knows its child.
  // Errors: those of Check; ALREADY_EXISTS for a child id that is in flight.
  absl::Status AddChild(GlobalId fork, GlobalId child);
  std::optional<ForkRelease> ChildAccepted(GlobalId child);

  // To be called when a session of this worker is lost. All forks that were confirmed in it fail
  // with `reason`. Pending forks stay as they are; their calls will confirm or fail them.
  void SessionLost(SessionKey session, const absl::Status& reason);

  // Ends all forks, even those with handles, which fail with `reason`. Returns the releases to
  // send.
  std::vector<ForkRelease> ReleaseAll(const absl::Status& reason);

  // Lists at most `limit` forks that still have a handle.
  std::vector<ForkRelease> Held(size_t limit) const;

  // Checks that a fork can be used. A pending fork can: uses wait for its creation.
  // Errors: the reason why the fork failed; FAILED_PRECONDITION if it is not held.
  absl::Status Check(GlobalId fork) const;
  // Whether Check is OK for every fork that is held here.
  bool AllUsable() const { return num_failed_ == 0; }
  // Returns kFailed for a fork that is not held.
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
    SessionKey session;    // the session in which the owner counts it, once it is confirmed
    bool counted = false;  // the owner counts it, or may count it, so it must be released once
    bool dropped = false;  // whether the last handle is gone
    int children = 0;      // the number of children in flight
    absl::Status failure;
  };
  using Forks = absl::flat_hash_map<GlobalId, Fork>;
  void SetState(Fork& fork, ForkState state);
  void Erase(Forks::iterator it);
  // Erases the fork if nobody needs it any more. Returns the release to send, if any.
  std::optional<ForkRelease> ReleaseIfDue(GlobalId id);

  Forks forks_;
  RecentSet<SessionKey> lost_{kMaxLostSessions};
  absl::flat_hash_map<GlobalId, GlobalId> parents_;  // child in flight -> fork
  size_t num_pending_ = 0;
  size_t num_failed_ = 0;
};

}  // namespace psd::rref
