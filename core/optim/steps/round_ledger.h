#pragma once

// Who takes part in the rounds of a synchronous optimizer, and when a round is complete. Pure.
//
// A round collects one step of every member. There are as many seats as trainers were declared:
//   - a seat that nobody has taken yet is waited for (trainers still start);
//   - a member takes one with its first step, and every round waits for it;
//   - a seat whose member left or died is empty and is not waited for; a newcomer may take it.
// When the last member leaves, all seats count as not yet taken again.
//
// Where gradients are measured before they are applied, a round is gone through twice, by the same
// members: all measure, then all step. Members that wait for each other in different phases would
// wait for ever, so who comes second is refused.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/base/ids.h"

namespace psd::optim {

enum class RoundPhase { kMeasure, kStep };

// Thread-compatible.
class RoundLedger {
 public:
  // Requires: trainers >= 1.
  explicit RoundLedger(uint32_t trainers) : trainers_(trainers), untaken_(trainers) {}

  // `member`'s step for this phase of the current round.
  // Errors: FAILED_PRECONDITION when all seats are taken, when the member has another step in this
  // round, or when others wait in the other phase.
  absl::Status Offer(GlobalId member, GlobalId step, RoundPhase phase = RoundPhase::kStep);
  // Takes a step back; its member stays and is waited for. False if it is not in this round.
  bool Withdraw(GlobalId step);
  // The member's seat is empty from now on, its step (returned, if any) is out of the round.
  std::optional<GlobalId> Leave(GlobalId member);

  // There are steps, and nobody is waited for.
  bool complete() const { return untaken_ == 0 && waiting_ > 0 && waiting_ == members_.size(); }
  // The steps of the complete phase; the next one begins. Requires: complete().
  std::vector<GlobalId> Take();

  size_t members() const { return members_.size(); }
  size_t waiting() const { return waiting_; }  // steps in this round so far

 private:
  const uint32_t trainers_;
  uint32_t untaken_;                                     // seats that nobody has taken yet
  size_t waiting_ = 0;                                   // members with a step
  RoundPhase phase_ = RoundPhase::kStep;                 // of those that wait
  std::map<GlobalId, std::optional<GlobalId>> members_;  // and their step in this round
};

}  // namespace psd::optim
