#pragma once

// An owner's record of the steps and turns that trainers ask one optimizer for: which may be
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

  // Checks whether a step may be applied, or a turn given. Returns nothing if it may, and OK if the
  // step was applied before. Errors: those of CheckLife; FAILED_PRECONDITION (the trainer has given
  // the step up, or the step is so old that it is unknown whether it was applied); ABORTED (the
  // session has ended); CANCELLED (the turn is over).
  std::optional<absl::Status> Find(const StepRequest& request);
  // As Find, for a step that is about to wait. A step in a named round may wait although it was
  // applied before; it is refused with CANCELLED if its turn is over.
  std::optional<absl::Status> FindWaiting(const StepRequest& request);
  // Whether the request's step was applied before.
  bool WasApplied(const StepRequest& request) const;
  // Records that the step has been applied, and that its trainer's steps below `ended_before` have
  // ended for the trainer. Requires: Find returns nothing.
  void End(GlobalId session, GlobalId step, uint64_t ended_before) {
    steps_.Acknowledge(step.incarnation, ended_before);
    steps_.End(session, step);
  }

  // Records that a trainer with this session has created the optimizer. If the session is a new
  // one, the trainer's turns with numbers below `turns_ended_before` were for former sessions: they
  // are over, even if the notice of a former session's end has not come yet. Returns the last
  // former session if the new one is known to follow it; that session has then ended.
  std::optional<GlobalId> Join(GlobalId session, uint64_t turns_ended_before);
  // Whether the session is known to have ended. Ends are forgotten when there are very many.
  bool HasEnded(GlobalId session) const { return turns_.HasEnded(session); }
  // Whether the step of a turn may still come.
  bool Expects(GlobalId turn) const { return turns_.Expects(turn); }
  // Ends a turn: it is not given any more, and nobody waits for its step.
  void EndTurn(GlobalId session, GlobalId turn);
  void EndTurn(GlobalId turn) { turns_.End(turn); }
  // Records that the session has ended for ever. Unknown sessions are remembered only if `waits`:
  // late messages of an unknown session could still take a place where others wait.
  void EndSession(GlobalId session, bool waits);

 private:
  OptimizerLife life_;
  StepRecords steps_;
  StepRecords turns_;
};

}  // namespace psd::optim
