#pragma once

// One step as an owner is asked for it.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "core/base/fair_queue.h"
#include "core/base/ids.h"
#include "core/optim/parameters/parameter_table.h"

namespace psd::optim {

// How the gradients of a step count: the same on every owner, decided before any applies it.
struct StepTerms {
  // Every element counts as g * gradient_scale (1 / loss scale, 1 / contexts, clipping by norm),
  // then clamped to +-gradient_limit (clipping by value).
  double gradient_scale = 1;
  double gradient_limit = std::numeric_limits<double>::infinity();
  // The number of accepted steps that the schedule goes by; none: what this owner has counted.
  std::optional<uint64_t> schedule_step;
  // What the loss was multiplied by; 0: it was not.
  double loss_scale = 0;
  // A gradient somewhere is not finite: nothing is applied, the loss scale hears of it.
  bool overflow = false;

  friend bool operator==(const StepTerms& a, const StepTerms& b) {
    return a.gradient_scale == b.gradient_scale && a.gradient_limit == b.gradient_limit &&
           a.schedule_step == b.schedule_step && a.loss_scale == b.loss_scale &&
           a.overflow == b.overflow;
  }
};

// Who asks: one worker's session here.
struct Member {
  GlobalId session;  // {incarnation, epoch}
  std::string name;  // for messages
  FlowId flow = {};  // whose share of the executor its long steps take
};

// What one step did on one owner.
struct StepResult {
  uint64_t steps_accepted = 0;  // by this owner, this one included
  int parameters_stepped = 0;   // those with a gradient
  uint64_t max_staleness = 0;   // versions between those read and those stepped, at most
  int trainers = 1;             // whose gradients this step applied: more in a synchronous round
  double loss_scale = 0;        // for the next loss; 0: the optimizer scales none
  bool skipped = false;         // because of overflow
  bool repeated = false;        // this step id had been applied before: nothing was done now
  double sum_of_squares = 0;    // of the gradients, where that was all that was asked for
};

struct StepRequest {
  GlobalId step_id;  // makes it idempotent: applied before, it is answered `repeated`. Or a turn's
  // The trainer's steps with smaller numbers have ended for it: see StepRecords.
  uint64_t ended_before = 0;
  uint64_t ticket = 0;  // of this asking of the step, for Withdraw
  GlobalId life = {};   // of the optimizer (optimizer_life.h) that the step belongs to; none: any
  Member member;
  StepPlan plan;  // made by the optimizer's table
  StepTerms terms;
  // Nothing is to be applied: the round's gradients are to be measured before. See RoundMeasure.
  bool measures = false;
  // Nothing is to be applied here: step_id names a turn, and `done` says that it has come for all
  // owners. It lasts until StepGate::EndTurn. ended_before is about the trainer's turns then.
  bool takes_turn = false;
  // It is this step's turn, given by the owner that leads: it does not wait.
  bool in_turn = false;
  // Asked once, right before the first byte changes; false cancels the step (`done` gets
  // CANCELLED, nothing has changed). May be null.
  absl::AnyInvocable<bool()> begin_apply;
  // Called once. Neither callback may wait for another step.
  absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done;
};

}  // namespace psd::optim
