#include "core/optim/owner/step_book.h"
#include "core/base/remedy.h"

#include "absl/strings/str_cat.h"

namespace psd::optim {
namespace {

using Answer = StepRecords::Answer;

absl::Status TurnIsOver() {
  return absl::CancelledError("the turn is over: its trainer has given it back");
}

}  // namespace

std::optional<absl::Status> StepBook::Find(const StepRequest& request) {
  if (absl::Status same = CheckLife(request.life, life_); !same.ok()) return same;
  const GlobalId session = request.member.session;
  if (request.takes_turn) {
    if (turns_.Find(session, request.step_id) != Answer::kNew) return TurnIsOver();
    turns_.Meet(session);
    turns_.Acknowledge(request.step_id.incarnation, request.ended_before);
    return std::nullopt;
  }
  switch (steps_.Find(session, request.step_id)) {
    case Answer::kNew:
      break;
    case Answer::kEnded:
      return absl::OkStatus();
    case Answer::kTooOld:
      return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                            "step ", request.step_id.ToString(),
                            " is older than those that are remembered: whether it was applied "
                            "cannot be told any more, and it is not applied now")),
                        "compute a new step");
    case Answer::kSessionEnded:
      return absl::AbortedError("the caller's session has ended; the step was not applied");
  }
  steps_.Acknowledge(request.step_id.incarnation, request.ended_before);
  return std::nullopt;
}

std::optional<absl::Status> StepBook::FindWaiting(const StepRequest& request) {
  std::optional<absl::Status> found = Find(request);
  if (!request.in_round()) return found;
  if (found.has_value() && !found->ok()) return found;
  if (turns_.Find(request.member.session, request.round.turn) != Answer::kNew) return TurnIsOver();
  turns_.Meet(request.member.session);
  turns_.Acknowledge(request.round.turn.incarnation, request.round.turns_ended_before);
  return std::nullopt;
}

bool StepBook::WasApplied(const StepRequest& request) const {
  return steps_.Find(request.member.session, request.step_id) == Answer::kEnded;
}

std::optional<GlobalId> StepBook::Join(GlobalId session, uint64_t turns_ended_before) {
  const std::optional<GlobalId> last = turns_.LastSession(session.incarnation);
  if (last.has_value() && last->counter >= session.counter) return std::nullopt;
  turns_.Meet(session);
  turns_.Acknowledge(session.incarnation, turns_ended_before);
  return last;
}

void StepBook::EndTurn(GlobalId session, GlobalId turn) {
  if (turns_.Find(session, turn) == Answer::kNew) turns_.End(session, turn);
}

void StepBook::EndSession(GlobalId session, bool waits) {
  if (waits || steps_.Knows(session.incarnation)) steps_.EndSession(session);
  if (waits) turns_.EndSession(session);
}

}  // namespace psd::optim
