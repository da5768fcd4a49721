#pragma once

// Where steps wait for those of other trainers. Puts a lock, and the answers to callers, around
// RoundLedger, RoundBoard and PaceLedger.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/steps/step_request.h"

namespace psd::optim {

// Thread-safe. Calls nobody back with a lock held, but for Known and Turns.
class StepGate {
 public:
  // Runs steps as one, all of them measuring or none. May return before they are done.
  using Run = std::function<void(std::vector<StepRequest>)>;
  // Returns the answer to a step that must not wait or run: it has ended, or never may run. Asked
  // with the gate's lock held. A step whose `done` was called successfully must be known from then
  // on. A step in a named round that was applied before is let in, because the other members wait
  // for it: `run` answers it.
  using Known = std::function<std::optional<absl::StatusOr<StepResult>>(const StepRequest&)>;
  // The owner's knowledge of turns, for rounds that the lead has named. Called with the gate's lock
  // held.
  struct Turns {
    std::function<bool(GlobalId turn)> expects;  // whether the turn's step may still come here
    std::function<void(GlobalId turn)> end;      // the turn's step is not expected any more
  };

  // Returns null for modes in which no step waits: asynchronous, and refusing stale gradients.
  // `turns` is used in synchronous modes only.
  static std::unique_ptr<StepGate> Create(const UpdateMode& mode, Known known, Run run,
                                          Turns turns);
  virtual ~StepGate() = default;

  // Runs the step when its mode allows: now, or on a thread of one of the calls below. Every step
  // ends with its `done`, called by `run` or from here. A step in a named round that is answered
  // with an error is out of that round on this owner, and the other members wait for it no longer.
  // Steps of the trainer below its `ended_before` wait no longer; if a turn is asked for, it is the
  // trainer's turns below that number that are over.
  // Errors (through `done`): FAILED_PRECONDITION (no place in the round, the trainer's last step
  // still waits, other terms than those of the round, a measure in no named round);
  // INVALID_ARGUMENT (a word that RoundBoard refuses); ABORTED (the step was asked for again, its
  // trainer has left); CANCELLED (withdrawn, or its turn is over); UNAVAILABLE (the same step runs
  // just now); the error given to Close; what `known` says.
  virtual void Submit(StepRequest request) = 0;
  // The caller of the request with this ticket has given up. Unless the step runs already, or was
  // asked for again meanwhile, it is not applied.
  virtual void Withdraw(uint64_t ticket) = 0;
  // The turn of a request that takes_turn is over. It counts if its step was applied anywhere. A
  // request that waits for its turn does not get it, and a step that waits in the turn's round is
  // out of that round.
  virtual void EndTurn(GlobalId turn, bool applied) = 0;
  // Asks `known` again about every step that waits, and answers those that must not wait any more.
  virtual void Recheck() = 0;
  // Nobody waits for the session any more, until its next step, and its turns are over. Does
  // nothing if the session has asked for a step or turn of the number `before` or more since; 0
  // stands for any number.
  virtual void Leave(GlobalId session, uint64_t before) = 0;

  // Answers every step that waits with `why`, and from now on every step that would have to be
  // admitted. Steps that run are not affected.
  virtual void Close(absl::Status why) = 0;

  struct Stats {
    size_t members = 0;
    size_t waiting = 0;
  };
  virtual Stats stats() const = 0;
};

}  // namespace psd::optim
