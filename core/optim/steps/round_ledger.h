#pragma once

// Decides who takes part in the rounds of a synchronous optimizer, and when a round is complete.
// Pure. For an optimizer on several owners only the lead has members here: it names each round's
// members, and the others follow (RoundBoard).
//
// A round collects one step of every member. There are as many seats as trainers were declared. A
// step is for one seat or, if it carries the gradients of several trainers, for as many seats:
//   - a seat that nobody has taken yet is waited for, because trainers may still be starting;
//   - a member takes its seats with its first step, and then every round waits for the member;
//   - a seat whose member left or died is empty and is not waited for. A new trainer may take it.
// A member may step for more seats than before, if they are left. If it steps for fewer, the others
// are empty. When the last member leaves, all seats count as not taken again, unless a trainer is
// left that had joined before a member's last step: the member may have stepped for that trainer
// too. Trainers that have joined since belong to a new run.
//
// All members of a round must ask for the same kind of round. Members that ask for different kinds
// would wait for each other for ever, so the later one is refused.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/ids.h"

namespace psd::optim {

enum class RoundKind {
  kHere,      // the steps themselves are collected, on the only owner
  kNamed,     // turns are collected: the lead names the round, then all members step
  kMeasured,  // as kNamed, and all members measure their gradients before they step
};

// ErrorDetail::object of the error of a step for more seats than are left. Other errors with the
// code RESOURCE_EXHAUSTED, such as a lack of memory, have other objects.
inline constexpr absl::string_view kSeats = "seats";

// Thread-compatible.
class RoundLedger {
 public:
  // Requires: trainers >= 1.
  explicit RoundLedger(uint32_t trainers) : trainers_(trainers), untaken_(trainers) {}

  // Adds `member`'s step, or its turn, for `seats` seats to the current round.
  // Errors: INVALID_ARGUMENT for no seats, or more than there are; RESOURCE_EXHAUSTED if the other
  // members have too many of them, with kSeats as the object; FAILED_PRECONDITION if the member has
  // another step in this round, or if others wait for a round of another kind.
  absl::Status Offer(GlobalId member, GlobalId step, RoundKind kind = RoundKind::kHere,
                     uint32_t seats = 1);
  // Records that a trainer uses the optimizer, although it may never step itself.
  void Join(GlobalId trainer) { newly_joined_.insert(trainer); }
  // Takes a step back. Its member stays and is waited for. Returns false if the step is not in this
  // round.
  bool Withdraw(GlobalId step);
  // Empties the member's seats; the member has not joined any more. Returns its step, if it had
  // one, which is then no longer in the round.
  std::optional<GlobalId> Leave(GlobalId member);
  // As Leave, but the trainer still uses the optimizer: another member may step for it from now on.
  std::optional<GlobalId> GiveSeats(GlobalId member);

  // Whether there are steps and the round waits for no other.
  bool complete() const { return untaken_ == 0 && waiting_ > 0 && waiting_ == members_.size(); }
  // Returns the steps of the complete round, and begins the next one. Requires: complete().
  std::vector<GlobalId> Take();

  RoundKind kind() const { return kind_; }  // of the waiting steps
  size_t members() const { return members_.size(); }
  size_t waiting() const { return waiting_; }  // steps in this round so far
  uint32_t taken() const { return taken_; }    // seats of all members

 private:
  struct Member {
    std::optional<GlobalId> step;  // in this round
    uint32_t seats = 0;
  };

  const uint32_t trainers_;
  uint32_t untaken_;    // seats that nobody has taken yet
  uint32_t taken_ = 0;  // seats of members; the seats in neither number are empty
  size_t waiting_ = 0;  // members with a step
  RoundKind kind_ = RoundKind::kHere;
  std::map<GlobalId, Member> members_;
  // The trainers that had joined when a member last offered a step, and those that came since.
  std::set<GlobalId> joined_, newly_joined_;
};

}  // namespace psd::optim
