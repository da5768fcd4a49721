#pragma once

// An owner's knowledge of the steps and turns that trainers ask one optimizer for: which may be
// applied, and which may still come. Pure.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "core/base/ids.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/optim/steps/step_records.h"
#include "core/optim/steps/step_request.h"

namespace psd::optim {

// Thread-compatible.
class StepBook {
 public:
  const OptimizerLife& life() const { return life_; }
  void set_life(OptimizerLife life) { life_ = std::move(life); }

  // Whether a step may be applied, or a turn given. Returns nothing if it may, and OK if the step
  // was applied before.
  // Errors: what CheckLife says; FAILED_PRECONDITION (the trainer has given the step up, or it is
  // too old to tell whether it was applied); ABORTED (the session has ended); CANCELLED (the turn
  // is over).
  std::optional<absl::Status> Find(const StepRequest& request);
  // As Find, for a step that has yet to wait. A step in a named round may wait although it was
  // applied before, and is refused with CANCELLED if its turn is over.
  std::optional<absl::Status> FindWaiting(const StepRequest& request);
  // Whether the request's step was applied before.
  bool WasApplied(const StepRequest& request) const;
  // The step has been applied, and its trainer's steps below `ended_before` have ended for it.
  // Requires: Find says nothing.
  void End(GlobalId session, GlobalId step, uint64_t ended_before) {
    steps_.Acknowledge(step.incarnation, ended_before);
    steps_.End(session, step);
  }

  // A trainer that has created the optimizer has this session here. If the session is a new one,
  // the trainer's turns with numbers below `turns_ended_before` were for former sessions: they are
  // over, even if the notice of a former session's end is still to come. Returns the last former
  // session if the new one is known to follow it: that one has ended.
  std::optional<GlobalId> Join(GlobalId session, uint64_t turns_ended_before);
  // Whether the step of a turn may still come.
  bool Expects(GlobalId turn) const { return turns_.Expects(turn); }
  // The turn is over: nothing is given to it, and nobody waits for its step.
  void EndTurn(GlobalId session, GlobalId turn);
  void EndTurn(GlobalId turn) { turns_.End(turn); }
  // The session never comes back. Only sessions that are known are remembered, unless `waits`: late
  // messages of an unknown session could still take a place where others wait.
  void EndSession(GlobalId session, bool waits);

 private:
  OptimizerLife life_;
  StepRecords steps_;
  StepRecords turns_;
};

}  // namespace psd::optim
