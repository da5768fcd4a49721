#pragma once

// Where steps wait for those of other trainers. Puts a lock, and the answers to callers, around
// RoundLedger, RoundBoard and PaceLedger.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/steps/step_request.h"

namespace psd::optim {

// A step waits, then it runs, then Known knows it if it was applied. If it was not applied, it may
// be asked for again. Thread-safe. Calls nobody back with a lock held, but for Known and Turns.
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
  StepGate(const StepGate&) = delete;
  StepGate& operator=(const StepGate&) = delete;

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
  void Submit(StepRequest request) PSD_EXCLUDES(mutex_);
  // The caller of the request with this ticket has given up. Unless the step runs already, or was
  // asked for again meanwhile, it is not applied.
  void Withdraw(uint64_t ticket) PSD_EXCLUDES(mutex_);
  // The trainer's steps with numbers below `before` are given up: those that wait, or come later,
  // are not applied and answered CANCELLED. Forgotten when a session of the trainer leaves.
  void GiveUp(uint64_t incarnation, uint64_t before) PSD_EXCLUDES(mutex_);
  // The turn of a request that takes_turn is over. It counts if its step was applied anywhere. A
  // request that waits for its turn does not get it, and a step that waits in the turn's round is
  // out of that round.
  void EndTurn(GlobalId turn, bool applied) PSD_EXCLUDES(mutex_);
  // Asks `known` again about every step that waits, and answers those that must not wait any more.
  void Recheck() PSD_EXCLUDES(mutex_);
  // Nobody waits for the session any more, until its next step, and its turns are over. Does
  // nothing if the session has asked for a step or turn of the number `before` or more since; 0
  // stands for any number.
  void Leave(GlobalId session, uint64_t before) PSD_EXCLUDES(mutex_);

  // Answers every step that waits with `why`, and from now on every step that would have to be
  // admitted. Steps that run are not affected.
  void Close(absl::Status why) PSD_EXCLUDES(mutex_);

  struct Stats {
    size_t members = 0;
    size_t waiting = 0;
  };
  virtual Stats stats() const PSD_EXCLUDES(mutex_) = 0;

 protected:
  // The calls to make once the lock is free.
  struct Actions {
    struct Answer {
      StepRequest request;
      absl::StatusOr<StepResult> result;
    };
    std::vector<Answer> answers;
    std::vector<std::vector<StepRequest>> runs;  // the steps of each are run as one
  };

  StepGate(Known known, Run run) : known_(std::move(known)), run_(std::move(run)) {}

  // Where the two kinds of gate differ. Called under the lock.
  virtual absl::Status Offer(const StepRequest& request) PSD_REQUIRES(mutex_) = 0;
  // Takes a step that waited out of where it waited.
  virtual void Remove(const StepRequest& request) PSD_REQUIRES(mutex_) = 0;
  // The session is no member any more. None of its steps waits.
  virtual void Drop(GlobalId session) PSD_REQUIRES(mutex_) = 0;
  virtual void Ended(bool applied) PSD_REQUIRES(mutex_) = 0;
  // Hands the steps that may run now to StartRun, and the turns that have come to GiveTurn.
  virtual void Advance(Actions& actions) PSD_REQUIRES(mutex_) = 0;
  // A request is answered with an error, and does not wait.
  virtual void Refused(const StepRequest& /*request*/) PSD_REQUIRES(mutex_) {}

  // Requires: the steps wait, and none asks for a turn.
  void StartRun(const std::vector<GlobalId>& steps, Actions& actions) PSD_REQUIRES(mutex_);
  // Requires: the request for the turn waits.
  void GiveTurn(GlobalId turn, StepResult answer, Actions& actions) PSD_REQUIRES(mutex_);
  void EndTurnsOf(GlobalId session) PSD_REQUIRES(mutex_);

  mutable Mutex mutex_;  // before: RoundMeasure, OwnerOptimizer::mutex_
  std::map<GlobalId, StepRequest> waiting_ PSD_GUARDED_BY(mutex_);  // by step id

 private:
  // A turn that has come, and has not ended.
  struct Turn {
    GlobalId session;
    StepResult answer;
  };

  StepRequest TakeWaiting(GlobalId step) PSD_REQUIRES(mutex_);
  // The requests that wait for the turn, or in the turn's round.
  std::vector<GlobalId> StepsOf(GlobalId turn) const PSD_REQUIRES(mutex_);
  void Admit(StepRequest request, Actions& actions) PSD_REQUIRES(mutex_);
  // The trainer has said that it will not ask for these any more; or, if it asks for a turn, that
  // these turns of its are over.
  void EndGivenUp(const StepRequest& request, Actions& actions) PSD_REQUIRES(mutex_);
  // Takes back the trainer's steps, or its requests for turns, with numbers below `before`.
  void TakeBackBelow(uint64_t incarnation, uint64_t before, bool turns, Actions& actions)
      PSD_REQUIRES(mutex_);
  // Ends turns whose trainers cannot say any more what they have applied.
  void EndTurns(absl::FunctionRef<bool(GlobalId id, const Turn& turn)> over) PSD_REQUIRES(mutex_);
  // Answers a step that waits.
  void TakeBack(GlobalId step, absl::StatusOr<StepResult> answer, Actions& actions)
      PSD_REQUIRES(mutex_);
  void EndRun(GlobalId step, absl::StatusOr<StepResult> result,
              absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) PSD_EXCLUDES(mutex_);
  void Perform(Actions actions) PSD_EXCLUDES(mutex_);

  const Known known_;
  const Run run_;
  absl::Status closed_ PSD_GUARDED_BY(mutex_);  // OK until Close
  std::set<GlobalId> running_ PSD_GUARDED_BY(mutex_);
  // Those of running_ that are turns and end with EndTurn.
  std::map<GlobalId, Turn> turns_ PSD_GUARDED_BY(mutex_);
  // The steps of each incarnation below this number were given up, and may still arrive.
  std::map<uint64_t, uint64_t> given_up_ PSD_GUARDED_BY(mutex_);
  // The greatest number of a step or turn that each session has waited with.
  std::map<GlobalId, uint64_t> last_asked_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::optim
