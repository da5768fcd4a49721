#include "core/optim/steps/step_gate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/optim/steps/pace_ledger.h"
#include "core/optim/steps/round_ledger.h"

namespace psd::optim {
namespace {

// What is to be done once the lock is free.
struct Actions {
  struct Answer {
    StepRequest request;
    absl::StatusOr<StepResult> result;
  };
  std::vector<Answer> answers;
  std::vector<StepRequest> run;  // as one
};

// What both kinds have in common. A step waits, then it runs, then `known_` knows it if it was
// applied; if it was not, it may be asked for again.
class GateBase : public StepGate {
 public:
  GateBase(Known known, Run run) : known_(std::move(known)), run_(std::move(run)) {}

  void Submit(StepRequest request) override {
    Actions actions;
    {
      MutexLock lock(mutex_);
      EndGivenUp(request, actions);
      Admit(std::move(request), actions);
      Advance(actions);
    }
    Perform(std::move(actions));
  }

  void Withdraw(uint64_t ticket) override {
    Actions actions;
    {
      MutexLock lock(mutex_);
      const auto found = std::find_if(waiting_.begin(), waiting_.end(), [ticket](const auto& each) {
        return each.second.ticket == ticket;
      });
      if (found != waiting_.end() && TakeBack(found->first)) {
        Answer(found->first, absl::CancelledError("the step was taken back before it was applied"),
               actions);
      }
      Advance(actions);
    }
    Perform(std::move(actions));
  }

  void EndTurn(GlobalId turn, bool applied) override {
    Actions actions;
    {
      MutexLock lock(mutex_);
      if (turns_.erase(turn) > 0) {
        running_.erase(turn);
        Ended(applied);
      } else if (waiting_.count(turn) > 0 && TakeBack(turn)) {
        Answer(turn, absl::CancelledError("the turn was given back before it came"), actions);
      }
      Advance(actions);
    }
    Perform(std::move(actions));
  }

  void Recheck() override {
    Actions actions;
    {
      MutexLock lock(mutex_);
      std::vector<std::pair<GlobalId, absl::StatusOr<StepResult>>> known;
      for (const auto& [step, request] : waiting_)
        if (auto answer = known_(request); answer.has_value()) known.emplace_back(step, *answer);
      for (auto& [step, answer] : known)
        if (TakeBack(step)) Answer(step, std::move(answer), actions);
      Advance(actions);
    }
    Perform(std::move(actions));
  }

  void Leave(GlobalId session) override {
    Actions actions;
    {
      MutexLock lock(mutex_);
      EndTurns([session](GlobalId, GlobalId owner) { return owner == session; });
      for (const GlobalId& step : Drop(session))
        Answer(step, absl::AbortedError("its trainer has left; the step was not applied"), actions);
      Advance(actions);
    }
    Perform(std::move(actions));
  }

  void Close(absl::Status why) override {
    Actions actions;
    {
      MutexLock lock(mutex_);
      closed_ = std::move(why);
      std::vector<GlobalId> steps;
      for (const auto& [step, request] : waiting_) steps.push_back(step);
      for (const GlobalId& step : steps)
        if (TakeBack(step)) Answer(step, closed_, actions);
    }
    Perform(std::move(actions));
  }

 protected:
  // The ledger's part, under the lock.
  virtual absl::Status Offer(const StepRequest& request) PSD_REQUIRES(mutex_) = 0;
  virtual bool TakeBack(GlobalId step) PSD_REQUIRES(mutex_) = 0;
  virtual std::vector<GlobalId> Drop(GlobalId session) PSD_REQUIRES(mutex_) = 0;
  virtual void Ended(bool applied) PSD_REQUIRES(mutex_) = 0;
  // Hands what may run now to StartRun.
  virtual void Advance(Actions& actions) PSD_REQUIRES(mutex_) = 0;

  void StartRun(GlobalId step, Actions& actions) PSD_REQUIRES(mutex_) {
    auto found = waiting_.find(step);
    StepRequest request = std::move(found->second);
    waiting_.erase(found);
    running_.insert(step);
    if (request.takes_turn) {
      turns_[step] = request.member.session;
      actions.answers.push_back({std::move(request), StepResult{}});
      return;
    }
    request.done = [this, step,
                    done = std::move(request.done)](absl::StatusOr<StepResult> result) mutable {
      EndRun(step, std::move(result), std::move(done));
    };
    actions.run.push_back(std::move(request));
  }

  mutable Mutex mutex_;  // before those that known_ takes
  std::map<GlobalId, StepRequest> waiting_ PSD_GUARDED_BY(mutex_);  // by step id

 private:
  void Admit(StepRequest request, Actions& actions) PSD_REQUIRES(mutex_) {
    const auto answer_now = [&](absl::StatusOr<StepResult> answer) {
      actions.answers.push_back({std::move(request), std::move(answer)});
    };
    const GlobalId step = request.step_id;
    const auto turn = turns_.find(step);
    if (turn != turns_.end() && turn->second == request.member.session && request.takes_turn)
      return answer_now(StepResult{});  // it has the turn, and its answer was lost
    if (running_.count(step) > 0)
      return answer_now(absl::UnavailableError("the step is being applied just now; ask again"));
    if (auto known = known_(request); known.has_value()) return answer_now(*std::move(known));
    if (!closed_.ok()) return answer_now(closed_);
    const auto found = waiting_.find(step);
    if (found != waiting_.end() && found->second.measures == request.measures) {
      // A retry takes the place of the earlier request, whose caller is answered now.
      std::swap(found->second, request);
      return answer_now(absl::AbortedError("the same step was asked for again"));
    }
    if (absl::Status offered = Offer(request); !offered.ok()) return answer_now(std::move(offered));
    waiting_.emplace(step, std::move(request));
  }

  // The trainer has said that it will not ask for these any more; or, where it asks for a turn,
  // that these turns of its are over.
  void EndGivenUp(const StepRequest& request, Actions& actions) PSD_REQUIRES(mutex_) {
    const GlobalId first{request.step_id.incarnation, 0};
    const GlobalId last{request.step_id.incarnation, request.ended_before};
    std::vector<GlobalId> steps;
    for (auto each = waiting_.lower_bound(first); each != waiting_.end() && each->first < last;
         ++each) {
      if (each->second.takes_turn == request.takes_turn) steps.push_back(each->first);
    }
    for (const GlobalId& step : steps)
      if (TakeBack(step)) Answer(step, absl::CancelledError("its trainer gave it up"), actions);
    if (!request.takes_turn) return;
    EndTurns([&](GlobalId turn, GlobalId) { return !(turn < first) && turn < last; });
  }

  // Of trainers that cannot say any more what they have applied.
  void EndTurns(absl::FunctionRef<bool(GlobalId step, GlobalId session)> over)
      PSD_REQUIRES(mutex_) {
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

  void Answer(GlobalId step, absl::StatusOr<StepResult> answer, Actions& actions)
      PSD_REQUIRES(mutex_) {
    auto found = waiting_.find(step);
    if (found == waiting_.end()) return;
    actions.answers.push_back({std::move(found->second), std::move(answer)});
    waiting_.erase(found);
  }

  void EndRun(GlobalId step, absl::StatusOr<StepResult> result,
              absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) PSD_EXCLUDES(mutex_) {
    Actions actions;
    {
      MutexLock lock(mutex_);
      running_.erase(step);
      Ended(result.ok() && !result->repeated && !result->skipped);
      Advance(actions);
    }
    done(std::move(result));
    Perform(std::move(actions));
  }

  void Perform(Actions actions) PSD_EXCLUDES(mutex_) {
    for (Actions::Answer& answer : actions.answers) answer.request.done(std::move(answer.result));
    if (!actions.run.empty()) run_(std::move(actions.run));
  }

  const Known known_;
  const Run run_;
  absl::Status closed_ PSD_GUARDED_BY(mutex_);  // OK until Close
  std::set<GlobalId> running_ PSD_GUARDED_BY(mutex_);
  // Those of running_ that are turns and end with EndTurn, and whose they are.
  std::map<GlobalId, GlobalId> turns_ PSD_GUARDED_BY(mutex_);
};

class RoundGate : public GateBase {
 public:
  RoundGate(uint32_t trainers, Known known, Run run)
      : GateBase(std::move(known), std::move(run)), ledger_(trainers) {}

  Stats stats() const override {
    MutexLock lock(mutex_);
    return {ledger_.members(), ledger_.waiting()};
  }

 private:
  absl::Status Offer(const StepRequest& request) override PSD_REQUIRES(mutex_) {
    const RoundPhase phase = request.measures ? RoundPhase::kMeasure : RoundPhase::kStep;
    if (phase == RoundPhase::kStep && !waiting_.empty() && !waiting_.begin()->second.measures) {
      const StepRequest& first = waiting_.begin()->second;
      StepTerms same = request.terms;
      same.schedule_step = first.terms.schedule_step;
      if (!(same == first.terms)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "the step is to count its gradients otherwise (scale ", request.terms.gradient_scale,
            ", limit ", request.terms.gradient_limit, ") than that of ", first.member.name,
            " in the same round (scale ", first.terms.gradient_scale, ", limit ",
            first.terms.gradient_limit, "); all trainers must step with the same options"));
      }
    }
    return ledger_.Offer(request.member.session, request.step_id, phase);
  }
  bool TakeBack(GlobalId step) override PSD_REQUIRES(mutex_) { return ledger_.Withdraw(step); }
  std::vector<GlobalId> Drop(GlobalId session) override PSD_REQUIRES(mutex_) {
    const std::optional<GlobalId> step = ledger_.Leave(session);
    return step.has_value() ? std::vector<GlobalId>{*step} : std::vector<GlobalId>{};
  }

  void Advance(Actions& actions) override PSD_REQUIRES(mutex_) {
    if (!ledger_.complete()) return;
    std::optional<uint64_t> schedule_step;
    for (const GlobalId& step : ledger_.Take()) {
      StartRun(step, actions);
      schedule_step = std::max(schedule_step, actions.run.back().terms.schedule_step);
    }
    for (StepRequest& each : actions.run) each.terms.schedule_step = schedule_step;
    // So that sums do not depend on who came first.
    std::sort(
        actions.run.begin(), actions.run.end(),
        [](const StepRequest& a, const StepRequest& b) { return a.member.name < b.member.name; });
  }

  void Ended(bool /*applied*/) override PSD_REQUIRES(mutex_) {}

  RoundLedger ledger_ PSD_GUARDED_BY(mutex_);
};

class PaceGate : public GateBase {
 public:
  PaceGate(uint64_t bound, Known known, Run run)
      : GateBase(std::move(known), std::move(run)), ledger_(bound) {}

  Stats stats() const override {
    MutexLock lock(mutex_);
    return {ledger_.members(), ledger_.waiting()};
  }

 private:
  absl::Status Offer(const StepRequest& request) override PSD_REQUIRES(mutex_) {
    ledger_.Arrive(request.member.session, request.step_id);
    return absl::OkStatus();
  }
  bool TakeBack(GlobalId step) override PSD_REQUIRES(mutex_) { return ledger_.Withdraw(step); }
  std::vector<GlobalId> Drop(GlobalId session) override PSD_REQUIRES(mutex_) {
    return ledger_.Leave(session);
  }

  void Advance(Actions& actions) override PSD_REQUIRES(mutex_) {
    if (const std::optional<GlobalId> step = ledger_.Next(); step.has_value())
      StartRun(*step, actions);
  }
  void Ended(bool applied) override PSD_REQUIRES(mutex_) { ledger_.Finish(applied); }

  PaceLedger ledger_ PSD_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<StepGate> StepGate::Create(const UpdateMode& mode, Known known, Run run) {
  switch (mode.kind) {
    case UpdateMode::Kind::kAsynchronous:
      return nullptr;
    case UpdateMode::Kind::kSynchronous:
      return std::make_unique<RoundGate>(mode.trainers, std::move(known), std::move(run));
    case UpdateMode::Kind::kBoundedStaleness:
      if (mode.when_stale == UpdateMode::WhenStale::kRefuse) return nullptr;
      return std::make_unique<PaceGate>(mode.staleness, std::move(known), std::move(run));
  }
  return nullptr;
}

}  // namespace psd::optim
