#include "core/optim/steps/step_gate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/optim/steps/pace_ledger.h"
#include "core/optim/steps/round_board.h"
#include "core/optim/steps/round_ledger.h"

namespace psd::optim {
namespace {

class RoundGate : public StepGate {
 public:
  RoundGate(uint32_t trainers, Known known, Run run, Turns turns)
      : StepGate(std::move(known), std::move(run)),
        turn_book_(std::move(turns)),
        ledger_(trainers),
        board_(trainers) {}

  Stats stats() const override {
    MutexLock lock(mutex_);
    return {ledger_.members(), ledger_.waiting() + board_.waiting()};
  }

 private:
  static RoundKind KindOf(const StepRequest& request) {
    if (!request.takes_turn) return RoundKind::kHere;
    return request.measures ? RoundKind::kMeasured : RoundKind::kNamed;
  }

  // Whether the two steps wait for each other, and so must have the same terms.
  static bool ShareTerms(const StepRequest& a, const StepRequest& b) {
    if (a.in_round() || b.in_round())
      return a.round.word == b.round.word && !a.measures && !b.measures;
    return KindOf(a) == KindOf(b);
  }

  absl::Status CheckTerms(const StepRequest& request) const PSD_REQUIRES(mutex_) {
    for (const auto& [step, other] : waiting_) {
      if (!ShareTerms(request, other)) continue;
      StepTerms same = request.terms;
      same.schedule_step = other.terms.schedule_step;
      if (same == other.terms && request.clip_norm == other.clip_norm) break;
      return absl::FailedPreconditionError(absl::StrCat(
          "the step scales or limits its gradients differently (scale ",
          request.terms.gradient_scale, ", limit ", request.terms.gradient_limit, ", norm ",
          request.clip_norm, ") from that of ", other.member.name, " in the same round (scale ",
          other.terms.gradient_scale, ", limit ", other.terms.gradient_limit, ", norm ",
          other.clip_norm, "); all trainers must step with the same options"));
    }
    return absl::OkStatus();
  }

  absl::Status Offer(const StepRequest& request) override PSD_REQUIRES(mutex_) {
    if (absl::Status same = CheckTerms(request); !same.ok()) return same;
    if (request.in_round())
      return board_.Offer(request.step_id, request.round, request.measures, request.seats);
    if (request.measures && !request.takes_turn) {
      return WithRemedy(
          absl::FailedPreconditionError("the gradients of a synchronous round are measured after "
                                        "the optimizer's lead has named the round"),
          "ask it for a turn first");
    }
    return ledger_.Offer(request.member.session, request.step_id, KindOf(request), request.seats);
  }
  void Remove(const StepRequest& request) override PSD_REQUIRES(mutex_) {
    if (!board_.Withdraw(request.step_id)) ledger_.Withdraw(request.step_id);
  }
  // A trainer whose attempt has failed here asks again with another turn.
  void Refused(const StepRequest& request) override PSD_REQUIRES(mutex_) {
    if (request.in_round()) turn_book_.end(request.round.turn);
  }
  void Joined(GlobalId session) override PSD_REQUIRES(mutex_) { ledger_.Join(session); }
  void Drop(GlobalId session, bool stays) override PSD_REQUIRES(mutex_) {
    if (stays) {
      ledger_.GiveSeats(session);
    } else {
      ledger_.Leave(session);
    }
  }

  void Advance(Actions& actions) override PSD_REQUIRES(mutex_) {
    if (ledger_.complete()) {
      const bool here = ledger_.kind() == RoundKind::kHere;
      std::vector<GlobalId> members = ledger_.Take();
      if (here) {
        RunRound(members, actions);
      } else {
        NameRound(std::move(members), actions);
      }
    }
    while (auto complete = board_.Take(turn_book_.expects)) {
      for (const GlobalId& turn : complete->missing) turn_book_.end(turn);
      RunRound(complete->steps, actions);
    }
  }

  void NameRound(std::vector<GlobalId> turns, Actions& actions) PSD_REQUIRES(mutex_) {
    std::sort(turns.begin(), turns.end());
    StepResult word;
    word.round = {++rounds_, turns};
    for (const GlobalId& turn : turns) {
      // A member that asks for its next turn has ended the last one, and need not say so.
      EndTurnsOf(waiting_.at(turn).member.session);
      GiveTurn(turn, word, actions);
    }
  }

  void RunRound(const std::vector<GlobalId>& steps, Actions& actions) PSD_REQUIRES(mutex_) {
    StartRun(steps, actions);
    std::vector<StepRequest>& run = actions.runs.back();
    std::optional<uint64_t> schedule_step;
    for (const StepRequest& each : run)
      schedule_step = std::max(schedule_step, each.terms.schedule_step);
    for (StepRequest& each : run) each.terms.schedule_step = schedule_step;
    // Sorted, so that sums do not depend on the order of arrival.
    std::sort(run.begin(), run.end(), [](const StepRequest& a, const StepRequest& b) {
      return a.member.name < b.member.name;
    });
  }

  void Ended(bool /*applied*/) override PSD_REQUIRES(mutex_) {}

  const Turns turn_book_;
  uint64_t rounds_ PSD_GUARDED_BY(mutex_) = 0;  // the number of named rounds
  RoundLedger ledger_ PSD_GUARDED_BY(mutex_);
  RoundBoard board_ PSD_GUARDED_BY(mutex_);
};

class PaceGate : public StepGate {
 public:
  PaceGate(uint64_t bound, Known known, Run run)
      : StepGate(std::move(known), std::move(run)), ledger_(bound) {}

  Stats stats() const override {
    MutexLock lock(mutex_);
    return {ledger_.members(), ledger_.waiting()};
  }

 private:
  absl::Status Offer(const StepRequest& request) override PSD_REQUIRES(mutex_) {
    ledger_.Arrive(request.member.session, request.step_id);
    return absl::OkStatus();
  }
  void Remove(const StepRequest& request) override PSD_REQUIRES(mutex_) {
    ledger_.Withdraw(request.step_id);
  }
  void Drop(GlobalId session, bool /*stays*/) override PSD_REQUIRES(mutex_) {
    ledger_.Leave(session);
  }

  void Advance(Actions& actions) override PSD_REQUIRES(mutex_) {
    const std::optional<GlobalId> step = ledger_.Next();
    if (!step.has_value()) return;
    if (waiting_.at(*step).takes_turn) return GiveTurn(*step, {}, actions);
    StartRun({*step}, actions);
  }
  void Ended(bool applied) override PSD_REQUIRES(mutex_) { ledger_.Finish(applied); }

  PaceLedger ledger_ PSD_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<StepGate> StepGate::Create(const UpdateMode& mode, Known known, Run run,
                                           Turns turns) {
  switch (mode.kind) {
    case UpdateMode::Kind::kAsynchronous:
      return nullptr;
    case UpdateMode::Kind::kSynchronous:
      return std::make_unique<RoundGate>(mode.trainers, std::move(known), std::move(run),
                                         std::move(turns));
    case UpdateMode::Kind::kBoundedStaleness:
      if (mode.when_stale == UpdateMode::WhenStale::kRefuse) return nullptr;
      return std::make_unique<PaceGate>(mode.staleness, std::move(known), std::move(run));
  }
  return nullptr;
}

void StepGate::Submit(StepRequest request) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    EndGivenUp(request, actions);
    Admit(std::move(request), actions);
    Advance(actions);
  }
  Perform(std::move(actions));
}

void StepGate::Withdraw(uint64_t ticket) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(), [ticket](const auto& each) {
      return each.second.ticket == ticket;
    });
    if (found != waiting_.end()) {
      TakeBack(found->first, absl::CancelledError("the step was taken back before it was applied"),
               actions);
    }
    Advance(actions);
  }
  Perform(std::move(actions));
}

void StepGate::GiveUp(uint64_t incarnation, uint64_t before) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    uint64_t& given_up = given_up_[incarnation];
    given_up = std::max(given_up, before);
    TakeBackBelow(incarnation, before, /*turns=*/false, actions);
    Advance(actions);
  }
  Perform(std::move(actions));
}

void StepGate::EndTurn(GlobalId turn, bool applied) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    if (turns_.erase(turn) > 0) {
      running_.erase(turn);
      Ended(applied);
    }
    for (const GlobalId& step : StepsOf(turn))
      TakeBack(step, absl::CancelledError("the turn was given back"), actions);
    Advance(actions);
  }
  Perform(std::move(actions));
}

void StepGate::Recheck() {
  Actions actions;
  {
    MutexLock lock(mutex_);
    std::vector<std::pair<GlobalId, absl::StatusOr<StepResult>>> known;
    for (const auto& [step, request] : waiting_)
      if (auto answer = known_(request); answer.has_value()) known.emplace_back(step, *answer);
    for (auto& [step, answer] : known) TakeBack(step, std::move(answer), actions);
    Advance(actions);
  }
  Perform(std::move(actions));
}

void StepGate::Join(GlobalId session) {
  MutexLock lock(mutex_);
  Joined(session);
}

void StepGate::Depart(GlobalId session, uint64_t before, bool stays) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    const auto asked = last_asked_.find(session);
    if (asked != last_asked_.end() && before > 0 && asked->second >= before) return;
    if (asked != last_asked_.end()) last_asked_.erase(asked);
    given_up_.erase(session.incarnation);
    EndTurnsOf(session);
    std::vector<GlobalId> steps;
    for (const auto& [step, request] : waiting_)
      if (request.member.session == session) steps.push_back(step);
    for (const GlobalId& step : steps) {
      TakeBack(step, absl::AbortedError("its trainer has left; the step was not applied"), actions);
    }
    Drop(session, stays);
    Advance(actions);
  }
  Perform(std::move(actions));
}

void StepGate::Close(absl::Status why) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    closed_ = std::move(why);
    std::vector<GlobalId> steps;
    for (const auto& [step, request] : waiting_) steps.push_back(step);
    for (const GlobalId& step : steps) TakeBack(step, closed_, actions);
  }
  Perform(std::move(actions));
}

void StepGate::StartRun(const std::vector<GlobalId>& steps, Actions& actions) {
  std::vector<StepRequest>& run = actions.runs.emplace_back();
  for (const GlobalId& step : steps) {
    StepRequest request = TakeWaiting(step);
    running_.insert(step);
    request.under_way = [this, step] { CountUnderWay(step); };
    request.done = [this, step,
                    done = std::move(request.done)](absl::StatusOr<StepResult> result) mutable {
      EndRun(step, std::move(result), std::move(done));
    };
    run.push_back(std::move(request));
  }
}

void StepGate::GiveTurn(GlobalId turn, StepResult answer, Actions& actions) {
  StepRequest request = TakeWaiting(turn);
  running_.insert(turn);
  turns_[turn] = {request.member.session, answer};
  actions.answers.push_back({std::move(request), std::move(answer)});
}

void StepGate::EndTurnsOf(GlobalId session) {
  EndTurns([session](GlobalId, const Turn& turn) { return turn.session == session; });
}

StepRequest StepGate::TakeWaiting(GlobalId step) {
  const auto found = waiting_.find(step);
  StepRequest request = std::move(found->second);
  waiting_.erase(found);
  return request;
}

std::vector<GlobalId> StepGate::StepsOf(GlobalId turn) const {
  std::vector<GlobalId> steps;
  for (const auto& [step, request] : waiting_) {
    const bool asks = request.takes_turn && step == turn;
    if (asks || (request.in_round() && request.round.turn == turn)) steps.push_back(step);
  }
  return steps;
}

void StepGate::Admit(StepRequest request, Actions& actions) {
  const auto answer_now = [&](absl::StatusOr<StepResult> answer) PSD_REQUIRES(mutex_) {
    if (!answer.ok()) Refused(request);
    actions.answers.push_back({std::move(request), std::move(answer)});
  };
  const GlobalId step = request.step_id;
  const auto turn = turns_.find(step);
  if (turn != turns_.end() && turn->second.session == request.member.session && request.takes_turn)
    return answer_now(turn->second.answer);  // it has the turn, but the answer was lost
  if (running_.count(step) > 0) {
    // The running call may be another attempt of this one, so the turn is not over.
    actions.answers.push_back(
        {std::move(request),
         WithRemedy(absl::UnavailableError("the step is being applied just now"), "ask again")});
    return;
  }
  if (auto known = known_(request); known.has_value()) return answer_now(*std::move(known));
  if (!closed_.ok()) return answer_now(closed_);
  const auto given_up = given_up_.find(step.incarnation);
  if (!request.takes_turn && given_up != given_up_.end() && step.counter < given_up->second)
    return answer_now(absl::CancelledError("its trainer gave it up"));
  const auto found = waiting_.find(step);
  if (found != waiting_.end() && found->second.measures == request.measures &&
      found->second.seats == request.seats && found->second.round.turn == request.round.turn) {
    // A retry takes the place of the earlier request, whose caller is answered now.
    std::swap(found->second, request);
    actions.answers.push_back(
        {std::move(request), absl::AbortedError("the same step was asked for again")});
    return;
  }
  if (found != waiting_.end()) {
    if (request.round.turn < found->second.round.turn)
      return answer_now(absl::AbortedError("the same step was asked for again in a later turn"));
    TakeBack(step, absl::AbortedError("the same step was asked for again"), actions);
  }
  if (absl::Status offered = Offer(request); !offered.ok()) return answer_now(std::move(offered));
  uint64_t& last = last_asked_[request.member.session];
  last = std::max({last, step.counter, request.round.turn.counter});
  waiting_.emplace(step, std::move(request));
}

void StepGate::TakeBackBelow(uint64_t incarnation, uint64_t before, bool turns, Actions& actions) {
  const GlobalId last{incarnation, before};
  std::vector<GlobalId> steps;
  for (auto each = waiting_.lower_bound({incarnation, 0});
       each != waiting_.end() && each->first < last; ++each) {
    if (each->second.takes_turn == turns) steps.push_back(each->first);
  }
  for (const GlobalId& step : steps)
    TakeBack(step, absl::CancelledError("its trainer gave it up"), actions);
}

void StepGate::EndGivenUp(const StepRequest& request, Actions& actions) {
  TakeBackBelow(request.step_id.incarnation, request.ended_before, request.takes_turn, actions);
  if (!request.takes_turn) return;
  const GlobalId first{request.step_id.incarnation, 0};
  const GlobalId last{request.step_id.incarnation, request.ended_before};
  EndTurns([&](GlobalId turn, const Turn&) { return !(turn < first) && turn < last; });
}

void StepGate::EndTurns(absl::FunctionRef<bool(GlobalId id, const Turn& turn)> over) {
  for (auto turn = turns_.begin(); turn != turns_.end();) {
    if (!over(turn->first, turn->second)) {
      ++turn;
      continue;
    }
    running_.erase(turn->first);
    turn = turns_.erase(turn);
    Ended(/*applied=*/true);
  }
}

void StepGate::TakeBack(GlobalId step, absl::StatusOr<StepResult> answer, Actions& actions) {
  StepRequest request = TakeWaiting(step);
  Remove(request);
  if (!answer.ok()) Refused(request);
  actions.answers.push_back({std::move(request), std::move(answer)});
}

// If the step fails all the same, its device is lost, and a step too many was counted: others then
// wait earlier than they have to.
void StepGate::CountUnderWay(GlobalId step) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    under_way_.insert(step);
    Ended(/*applied=*/true);
    Advance(actions);
  }
  Perform(std::move(actions));
}

void StepGate::EndRun(GlobalId step, absl::StatusOr<StepResult> result,
                      absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    running_.erase(step);
    if (under_way_.erase(step) == 0) Ended(result.ok() && !result->repeated && !result->skipped);
    Advance(actions);
  }
  done(std::move(result));
  Perform(std::move(actions));
}

void StepGate::Perform(Actions actions) {
  for (Actions::Answer& answer : actions.answers) answer.request.done(std::move(answer.result));
  for (std::vector<StepRequest>& run : actions.runs) run_(std::move(run));
}

}  // namespace psd::optim
