#pragma once

// The place where steps wait for steps of other trainers. Adds a lock, and the answers to callers,
// to RoundLedger, RoundBoard and PaceLedger.

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

// A step waits, then runs, and if it was applied, `known` knows it from then on. Other steps go on
// when it has ended, or when a device works on it. A step that was not applied may be asked for
// again. Thread-safe. No callback except Known and Turns is called
// with a lock held.
class StepGate {
 public:
  // Runs steps as one. Either all of them measure or none does. May return before they are done.
  using Run = std::function<void(std::vector<StepRequest>)>;
  // Returns the answer to a step that must not wait or run, because it has ended or may never run.
  // Called with the gate's lock held. A step whose `done` was called with success must be known
  // from then on. A step in a named round that was applied before is admitted, because the other
  // members wait for it; `run` then answers it.
  using Known = std::function<std::optional<absl::StatusOr<StepResult>>(const StepRequest&)>;
  // The owner's knowledge of turns, for rounds that the lead has named. Called with the gate's lock
  // held.
  struct Turns {
    std::function<bool(GlobalId turn)> expects;  // whether the turn's step may still come here
    std::function<void(GlobalId turn)> end;      // ends the turn: its step is no longer expected
  };

  // Returns null for modes in which no step waits: asynchronous, and refusing stale gradients.
  // `turns` is used in synchronous modes only.
  static std::unique_ptr<StepGate> Create(const UpdateMode& mode, Known known, Run run,
                                          Turns turns);
  virtual ~StepGate() = default;
  StepGate(const StepGate&) = delete;
  StepGate& operator=(const StepGate&) = delete;

  // Runs the step when its mode allows: now, or on the thread of one of the calls below. Every step
  // ends with a call of its `done`, by `run` or from here. If a step in a named round is answered
  // with an error, it is out of that round on this owner, and the other members no longer wait for
  // it. Steps of the trainer below its `ended_before` no longer wait; if the request is for a turn,
  // the trainer's turns below that number are over instead. Errors (through `done`):
  // FAILED_PRECONDITION (the trainer's last step still waits, other terms than those of the round,
  // a measurement outside of a named round); RESOURCE_EXHAUSTED (too few seats are left);
  // INVALID_ARGUMENT (a number of seats that RoundLedger refuses, a word or number of seats that
  // RoundBoard refuses); ABORTED (the step was asked for again, its trainer has left); CANCELLED
  // (withdrawn, or its turn is over); UNAVAILABLE (the same step is running); the error given to
  // Close; the errors of `known`.
  void Submit(StepRequest request) PSD_EXCLUDES(mutex_);
  // To be called when the caller of the request with this ticket has given up. The step is not
  // applied, unless it is already running or was asked for again meanwhile.
  void Withdraw(uint64_t ticket) PSD_EXCLUDES(mutex_);
  // Gives up the trainer's steps with numbers below `before`: those that wait, or come later, are
  // not applied, and are answered CANCELLED. This is forgotten when a session of the trainer
  // leaves.
  void GiveUp(uint64_t incarnation, uint64_t before) PSD_EXCLUDES(mutex_);
  // To be called when the turn of a request with takes_turn is over. The turn is counted if its
  // step was applied anywhere. A request that waits for its turn does not get it, and a step that
  // waits in the turn's round is out of that round.
  void EndTurn(GlobalId turn, bool applied) PSD_EXCLUDES(mutex_);
  // Asks `known` again about every waiting step, and answers those that must not wait any longer.
  void Recheck() PSD_EXCLUDES(mutex_);
  // Records that a trainer with this session uses the optimizer, until it leaves. See RoundLedger.
  void Join(GlobalId session) PSD_EXCLUDES(mutex_);
  // From now on nobody waits for the session until its next step, and its turns are over. Does
  // nothing if the session has since asked for a step or turn with the number `before` or a greater
  // one; if `before` is 0, it always takes effect.
  void Leave(GlobalId session, uint64_t before) PSD_EXCLUDES(mutex_) {
    Depart(session, before, /*stays=*/false);
  }
  // As Leave, but the trainer still uses the optimizer. See RoundLedger.
  void GiveSeats(GlobalId session, uint64_t before) PSD_EXCLUDES(mutex_) {
    Depart(session, before, /*stays=*/true);
  }

  // Answers every waiting step with `why`, and from now on every step that would have to be
  // admitted. Running steps are not affected.
  void Close(absl::Status why) PSD_EXCLUDES(mutex_);

  struct Stats {
    size_t members = 0;
    size_t waiting = 0;
  };
  virtual Stats stats() const PSD_EXCLUDES(mutex_) = 0;

 protected:
  // The calls to make once the lock is released.
  struct Actions {
    struct Answer {
      StepRequest request;
      absl::StatusOr<StepResult> result;
    };
    std::vector<Answer> answers;
    std::vector<std::vector<StepRequest>> runs;  // the steps of each are run as one
  };

  StepGate(Known known, Run run) : known_(std::move(known)), run_(std::move(run)) {}

  // The next functions differ between the two kinds of gate. They are called under the lock.
  virtual absl::Status Offer(const StepRequest& request) PSD_REQUIRES(mutex_) = 0;
  // Removes a waiting step from the ledger or board in which it waits.
  virtual void Remove(const StepRequest& request) PSD_REQUIRES(mutex_) = 0;
  virtual void Joined(GlobalId /*session*/) PSD_REQUIRES(mutex_) {}
  // The session is no longer a member. None of its steps is waiting. `stays` says whether its
  // trainer still uses the optimizer.
  virtual void Drop(GlobalId session, bool stays) PSD_REQUIRES(mutex_) = 0;
  // A step that was running has ended, or is under way on a device and so counts as applied.
  virtual void Ended(bool applied) PSD_REQUIRES(mutex_) = 0;
  // Passes the steps that may run now to StartRun, and the turns that have come to GiveTurn.
  virtual void Advance(Actions& actions) PSD_REQUIRES(mutex_) = 0;
  // Called when a request is answered with an error, and does not wait.
  virtual void Refused(const StepRequest& /*request*/) PSD_REQUIRES(mutex_) {}

  // Requires: the steps are waiting, and none of them asks for a turn.
  void StartRun(const std::vector<GlobalId>& steps, Actions& actions) PSD_REQUIRES(mutex_);
  // Requires: the request for the turn is waiting.
  void GiveTurn(GlobalId turn, StepResult answer, Actions& actions) PSD_REQUIRES(mutex_);
  void EndTurnsOf(GlobalId session) PSD_REQUIRES(mutex_);

  mutable Mutex mutex_;  // before: RoundMeasure, OwnerOptimizer::mutex_
  std::map<GlobalId, StepRequest> waiting_ PSD_GUARDED_BY(mutex_);  // by step id

 private:
  // A turn that has been given and has not ended.
  struct Turn {
    GlobalId session;
    StepResult answer;
  };

  void Depart(GlobalId session, uint64_t before, bool stays) PSD_EXCLUDES(mutex_);
  StepRequest TakeWaiting(GlobalId step) PSD_REQUIRES(mutex_);
  // Returns the requests that wait for the turn, or in the turn's round.
  std::vector<GlobalId> StepsOf(GlobalId turn) const PSD_REQUIRES(mutex_);
  void Admit(StepRequest request, Actions& actions) PSD_REQUIRES(mutex_);
  // Handles `ended_before` of a request: the trainer will not ask for these steps any more or, if
  // it asks for a turn, these turns of the trainer are over.
  void EndGivenUp(const StepRequest& request, Actions& actions) PSD_REQUIRES(mutex_);
  // Takes back the trainer's steps, or its requests for turns, with numbers below `before`.
  void TakeBackBelow(uint64_t incarnation, uint64_t before, bool turns, Actions& actions)
      PSD_REQUIRES(mutex_);
  // Ends turns whose trainers can no longer say what they have applied.
  void EndTurns(absl::FunctionRef<bool(GlobalId id, const Turn& turn)> over) PSD_REQUIRES(mutex_);
  // Answers a waiting step.
  void TakeBack(GlobalId step, absl::StatusOr<StepResult> answer, Actions& actions)
      PSD_REQUIRES(mutex_);
  void CountUnderWay(GlobalId step) PSD_EXCLUDES(mutex_);
  void EndRun(GlobalId step, absl::StatusOr<StepResult> result,
              absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) PSD_EXCLUDES(mutex_);
  void Perform(Actions actions) PSD_EXCLUDES(mutex_);

  const Known known_;
  const Run run_;
  absl::Status closed_ PSD_GUARDED_BY(mutex_);  // OK until Close
  std::set<GlobalId> running_ PSD_GUARDED_BY(mutex_);
  // The members of running_ that are under way on a device: Ended has been called for them.
  std::set<GlobalId> under_way_ PSD_GUARDED_BY(mutex_);
  // The members of running_ that are turns and end with EndTurn.
  std::map<GlobalId, Turn> turns_ PSD_GUARDED_BY(mutex_);
  // For each incarnation, the number below which its steps were given up. Such steps may still
  // arrive.
  std::map<uint64_t, uint64_t> given_up_ PSD_GUARDED_BY(mutex_);
  // The greatest number of a step or turn that each session has waited with.
  std::map<GlobalId, uint64_t> last_asked_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::optim
