#pragma once

// Decides who takes part in the rounds of a synchronous optimizer, and when a round is complete.
// Pure. For an optimizer on several owners only the lead has members here: it names each round's
// members, and the others follow (RoundBoard).
//
// A round collects one step of every member. There are as many seats as trainers were declared:
//   - a seat that nobody has taken yet is waited for, because trainers may still be starting;
//   - a member takes a seat with its first step, and then every round waits for the member;
//   - a seat whose member left or died is empty and is not waited for. A new trainer may take it.
// When the last member leaves, all seats count as not taken again.
//
// All members of a round must ask for the same kind of round. Members that ask for different kinds
// would wait for each other for ever, so the later one is refused.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/base/ids.h"

namespace psd::optim {

enum class RoundKind {
  kHere,      // the steps themselves are collected, on the only owner
  kNamed,     // turns are collected: the lead names the round, then all members step
  kMeasured,  // as kNamed, and all members measure their gradients before they step
};

// Thread-compatible.
class RoundLedger {
 public:
  // Requires: trainers >= 1.
  explicit RoundLedger(uint32_t trainers) : trainers_(trainers), untaken_(trainers) {}

  // Adds `member`'s step, or its turn, to the current round.
  // Errors: FAILED_PRECONDITION if all seats are taken, if the member has another step in this
  // round, or if others wait for a round of another kind.
  absl::Status Offer(GlobalId member, GlobalId step, RoundKind kind = RoundKind::kHere);
  // Takes a step back. Its member stays and is waited for. Returns false if the step is not in this
  // round.
  bool Withdraw(GlobalId step);
  // Empties the member's seat. Returns its step, if it had one, which is then no longer in the
  // round.
  std::optional<GlobalId> Leave(GlobalId member);

  // Whether there are steps and the round waits for no other.
  bool complete() const { return untaken_ == 0 && waiting_ > 0 && waiting_ == members_.size(); }
  // Returns the steps of the complete round, and begins the next one. Requires: complete().
  std::vector<GlobalId> Take();

  RoundKind kind() const { return kind_; }  // of the waiting steps
  size_t members() const { return members_.size(); }
  size_t waiting() const { return waiting_; }  // steps in this round so far

 private:
  const uint32_t trainers_;
  uint32_t untaken_;    // seats that nobody has taken yet
  size_t waiting_ = 0;  // members with a step
  RoundKind kind_ = RoundKind::kHere;
  std::map<GlobalId, std::optional<GlobalId>> members_;  // with their steps in this round
};

}  // namespace psd::optim
