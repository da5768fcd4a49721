#pragma once

// One rank's record of the calls of a group: which ranks have made which call, what has come of
// each call, and whether the group has failed. Pure: no clock, threads or messages. It is told
// events, and returns the effects that its driver is to perform.
//
// Calls are numbered from 0 in the order in which a rank makes them. A rank that makes ("enters") a
// call tells all others what it calls. A call completes at a rank once all ranks have entered it
// and the rank has all the data that it gets, so no rank is ever ahead of another by more than the
// calls that it has under way.
//
// A group fails once and for good: if a rank dies, is late, or calls something else. The failure is
// told to all other ranks (see CollectiveGroup), so that the calls of all ranks fail with it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/services/collectives/call_plan.h"
#include "core/services/collectives/collective_call.h"

namespace psd::services {

// Something to do for the call of that number.
struct GroupEffect {
  enum Kind {
    kTell,         // tell all other ranks of the call, with the data for them if the plan says so,
                   // and that all calls before call `index` are complete here
    kOpen,         // `rank` is ready for the pieces of the call, those of both phases
    kReduce,       // piece `index` of the own part has come from all ranks: reduce it, call Reduced
    kSendReduced,  // send piece `index` of the reduced own part to all other ranks
    kComplete,     // the result is there. The data for other ranks may still be on its way
    kFail,         // the group has failed, with failure(): all calls that are not complete fail
  };
  Kind kind = kTell;
  uint64_t number = 0;  // not of kFail
  int rank = 0;
  size_t index = 0;

  friend bool operator==(const GroupEffect& a, const GroupEffect& b) {
    return a.kind == b.kind && a.number == b.number && a.rank == b.rank && a.index == b.index;
  }
};
using GroupEffects = absl::InlinedVector<GroupEffect, 4>;

// Thread-compatible. After a failure all events are ignored.
class GroupLedger {
 public:
  // A rank begins at most this many calls beyond the oldest that is not complete. Later calls wait.
  static constexpr uint64_t kMaxUnderWay = 16;
  // The most calls that may be entered and not complete.
  static constexpr uint64_t kMaxEntered = 4096;

  // `members` are the names of the workers, by rank. Requires: at least two.
  GroupLedger(std::string name, std::vector<std::string> members, int rank,
              const PlanLimits& limits = {});

  // This rank makes its next call. Returns the number of the call.
  // Errors: INVALID_ARGUMENT (CheckCall), RESOURCE_EXHAUSTED (too many calls wait): the group is as
  // before. The failure of the group.
  absl::StatusOr<uint64_t> Enter(const CollectiveCall& call, absl::Time now, absl::Duration timeout,
                                 GroupEffects& effects);
  // `from` has entered a call, and has completed all calls before `completed`. Returns whether what
  // came with the notice is to be kept for the call: not if the group has failed before, or fails
  // because the ranks differ in this call. The notice may complete the call and then fail the
  // group, because a later call cannot begin; the completed call needs what came. Errors:
  // INVALID_ARGUMENT for what an honest rank never sends.
  absl::StatusOr<bool> Heard(int from, uint64_t number, uint64_t completed,
                             const CollectiveCall& call, GroupEffects& effects);
  // `rank` has taken note that this rank has entered a call.
  void Told(int rank, uint64_t number, GroupEffects& effects);
  // A piece has come from `from`. A piece of phase 1 is to be stored in the result, and then
  // Stored. Errors: INVALID_ARGUMENT for a piece that no honest rank sends; drop it.
  absl::Status Arrived(int from, uint64_t number, int phase, size_t index, GroupEffects& effects);
  void Stored(uint64_t number, GroupEffects& effects);
  void Reduced(uint64_t number, size_t index, GroupEffects& effects);

  // A message to `rank` has failed. If the detail of `why` names this rank, this rank cannot go on.
  // Otherwise, with UNAVAILABLE, ABORTED, CANCELLED and DEADLINE_EXCEEDED, that rank has died, as
  // far as this one can tell; with another code it refused the message.
  void Lost(int rank, const absl::Status& why, GroupEffects& effects);
  // `rank` has sent what no honest rank sends, which this rank found only after it had taken the
  // message.
  void Broken(int rank, const absl::Status& why, GroupEffects& effects);
  // This rank cannot make its next call, and says why.
  void GiveUp(const absl::Status& why, GroupEffects& effects);
  // `rank` has ended its part in the group in order: it sends nothing any more. If it is this rank,
  // the group has failed here.
  void Left(int rank, GroupEffects& effects);
  void Fail(absl::Status failure, GroupEffects& effects);
  // Fails the group if a call is not complete at its deadline, naming the ranks that are late.
  void Expire(absl::Time now, GroupEffects& effects);

  // Puts off the deadlines up to `now` until `until`, once for each call.
  void Extend(absl::Time now, absl::Time until);

  // When to call Expire next, after a call of it at `now`: at the earliest deadline of a call that
  // is not complete, or at a later time if one has passed. InfiniteFuture if there is none.
  absl::Time NextDeadline(absl::Time now) const;
  // OK as long as the group has not failed.
  const absl::Status& failure() const { return failure_; }
  // Returns the lowest rank that has not entered the call, or -1 if there is none.
  int FirstAbsent(uint64_t number) const;
  bool HasLeft(int rank) const { return left_[rank]; }

 private:
  struct Peer {
    bool heard = false;
    bool told = false;
    bool has_form = false;         // as it has made the call
    bool open = false;             // for pieces of the call
    std::vector<bool> arrived[2];  // by piece, for each phase
    size_t pieces_left = 0;        // that have not come, of both phases
  };
  struct Call {
    std::optional<CollectiveCall> call;  // as the first rank that was heard of makes it
    int caller = 0;                      // that rank
    bool entered = false;
    bool begun = false;
    bool complete = false;
    bool put_off = false;  // its deadline
    absl::Duration timeout;
    absl::Time deadline = absl::InfiniteFuture();
    std::optional<CallPlan> plan;  // once begun, and the form is known
    std::vector<Peer> peers;       // by rank; the own one is not used
    int heard = 0;
    int open = 0;
    // Pieces of phase 0 that have not come, unless they are reduced, and pieces of phase 1 that are
    // not stored.
    size_t pieces_left = 0;
    std::vector<int> arrivals;  // by piece that is to be reduced: the ranks it came from
    size_t reductions_left = 0;
    bool reducing = false;  // the only reduction of what the notices bring has been asked for
  };
  using Calls = std::map<uint64_t, Call>;

  int size() const { return static_cast<int>(members_.size()); }
  // "rank 2 (trainer2)".
  std::string RankName(int rank) const;
  Call& CallOf(uint64_t number);
  // Compares `call`, as `by` makes it, with what is known. Returns whether they agree; fails the
  // group if not.
  bool Compare(Call& known, uint64_t number, int by, const CollectiveCall& call,
               GroupEffects& effects);
  void BeginWaiting(GroupEffects& effects);
  void Begin(uint64_t number, Call& call, GroupEffects& effects);
  void MakePlan(Call& call);
  // Opens the lines to those ranks that have become ready for pieces of the call.
  void OpenReady(uint64_t number, Call& call, GroupEffects& effects);
  void OpenIfReady(uint64_t number, Call& call, int rank, GroupEffects& effects);
  void Progress(Calls::iterator call, GroupEffects& effects);
  void EraseIfOver(Calls::iterator call);
  bool Needs(const Call& call, int rank) const;
  std::string CallName(uint64_t number, const Call& call) const;
  // Whether the rank has not made the call, perhaps because older calls are not complete there: as
  // many as can be under way, or one in which it waits for sums.
  bool IsHeldBack(uint64_t number, const Call& call, int rank) const;
  // How long after its deadline a call that has begun fails, because other ranks may know better
  // which rank keeps it waiting.
  absl::Duration Doubt(uint64_t number, const Call& call) const;
  // The doubt of the oldest call.
  absl::Duration OldestDoubt() const;
  // The time at which the group fails if the call is not complete: its deadline and the doubt. A
  // call that has not begun waits for the oldest one.
  absl::Time DueTime(uint64_t number, const Call& call, absl::Duration oldest_doubt) const;
  // The error of a call that has waited for `waited`, and whose ranks are late.
  absl::Status Late(uint64_t number, const Call& call, absl::Duration waited) const;
  // INVALID_ARGUMENT becomes FAILED_PRECONDITION: to callers it means that their call did not
  // count.
  absl::Status OfGroup(absl::StatusCode code, const std::string& text, int culprit) const;

  const std::string name_;
  const std::vector<std::string> members_;
  const int rank_;
  const PlanLimits limits_;
  absl::Status failure_;
  std::vector<bool> left_;           // by rank
  std::vector<uint64_t> completed_;  // by rank: it has completed all calls before that one
  std::vector<uint64_t> sums_;       // by rank: all calls in which it gets sums are before that one
  uint64_t next_ = 0;                // the number of the next call that this rank enters
  uint64_t next_begin_ = 0;
  uint64_t floor_ = 0;  // all calls before it are complete
  Calls calls_;         // those that are not over, by number
};

}  // namespace psd::services
