#pragma once

// A trainer's request for a step on one owner, and the owner's answer.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "core/base/fair_queue.h"
#include "core/base/ids.h"
#include "core/optim/parameters/parameter_table.h"

namespace psd::optim {

// Says how the gradients of a step are used. The terms are decided before any owner applies the
// step, and are the same on every owner.
struct StepTerms {
  // Every element is used as g * gradient_scale, clamped to +-gradient_limit. The scale includes
  // the loss scale, the number of contexts and clipping by norm; the limit clips by value.
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
  // The number of accepted steps for the schedule. If absent, the owner's own count is used.
  std::optional<uint64_t> schedule_step;
  // The number by which the loss was multiplied; 0 if it was not.
  double loss_scale = 0;
  // Whether a gradient on some owner is not finite. Then nothing is applied, and the loss scale
  // shrinks.
  bool overflow = false;

  friend bool operator==(const StepTerms& a, const StepTerms& b) {
    return a.gradient_scale == b.gradient_scale && a.gradient_limit == b.gradient_limit &&
           a.schedule_step == b.schedule_step && a.loss_scale == b.loss_scale &&
           a.overflow == b.overflow;
  }
};

// The trainer that asks, in its session with this owner.
struct Member {
  GlobalId session;  // {incarnation, epoch}
  std::string name;  // for messages
  FlowId flow = {};  // the flow to which its long steps are charged in the executor
};

// The lead's *word* on one round of a synchronous optimizer. It is the same for all members and on
// all owners.
struct RoundWord {
  uint64_t number = 0;            // counts the lead's rounds from 1; 0 means that no round is named
  std::vector<GlobalId> members;  // the turns of the trainers that take part, in order

  friend bool operator==(const RoundWord& a, const RoundWord& b) {
    return a.number == b.number && a.members == b.members;
  }
};

// A step's place in a round that the lead has named.
struct RoundPlace {
  GlobalId turn;                    // the turn of this attempt of the step; one of word.members
  uint64_t turns_ended_before = 0;  // the trainer's turns with smaller numbers are over
  RoundWord word;
};

// The outcome of one step on one owner.
struct StepResult {
  uint64_t steps_accepted = 0;  // by this owner, including this step
  int parameters_stepped = 0;   // those with a gradient
  // The most versions between the version that was read and the one that was stepped.
  uint64_t max_staleness = 0;
  // How many trainers' gradients this step applied, which is the number of seats: several in a
  // synchronous round.
  int trainers = 1;
  double loss_scale = 0;      // for the next loss; 0 if the optimizer scales no losses
  bool skipped = false;       // because of an overflow
  bool repeated = false;      // this step id had been applied before, and nothing was done now
  double sum_of_squares = 0;  // of the gradients, if only that was asked for
  RoundWord round;            // set if a turn was asked for and steps go in rounds
};

struct StepRequest {
  // Makes the step idempotent: a step that was applied before is answered `repeated`. If
  // takes_turn, this is the id of the turn.
  GlobalId step_id;
  // The trainer's steps with smaller numbers have ended for the trainer; see StepRecords. If
  // takes_turn, the trainer's turns with smaller numbers are over.
  uint64_t ended_before = 0;
  uint64_t ticket = 0;  // of this call, for Withdraw
  // The life of the optimizer (optimizer_life.h) that the step belongs to; no id: any life.
  GlobalId life = {};
  Member member;
  StepPlan plan;  // made by the optimizer's table
  StepTerms terms;
  // The number of seats of the round that the step takes (RoundLedger), which is the number of
  // trainers whose gradients it carries. At least 1; above 1 in synchronous modes only.
  uint32_t seats = 1;
  // If true, nothing is applied: the round's gradients are measured before its step. See
  // RoundMeasure. If takes_turn, the round is to be measured.
  bool measures = false;
  // If true, nothing is applied: `done` says that the turn has come for all owners. The turn lasts
  // until StepGate::EndTurn. In rounds the answer has the lead's word.
  bool takes_turn = false;
  // If takes_turn, the norm by which the members of the round clip. All members must give the same.
  double clip_norm = std::numeric_limits<double>::infinity();
  // Whether the lead has said that it is this step's turn; then the step does not wait.
  bool in_turn = false;
  // If round.word.number is not 0, the step waits for the other members of that round only.
  RoundPlace round;
  // Called once, right before the first byte changes. If it returns false, the step is cancelled:
  // nothing has changed, and `done` gets CANCELLED. May be null.
  absl::AnyInvocable<bool()> begin_apply;
  // Called at most once, before `done`, when the step has been applied but a device still works on
  // it. Other steps may be applied behind it then. May be null.
  absl::AnyInvocable<void()> under_way;
  // Called once. None of the callbacks may wait for another step.
  absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done;

  bool in_round() const { return round.word.number != 0; }
};

}  // namespace psd::optim
