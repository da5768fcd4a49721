#include "core/optim/steps/step_gate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/optim/steps/pace_ledger.h"
#include "core/optim/steps/round_ledger.h"
#include "core/optim/steps/step_log.h"

namespace psd::optim {
namespace {

// What is to be done once the lock is free.
struct Actions {
  struct Answer {
    StepRequest request;
    absl::Status status;
  };
  std::vector<Answer> answers;
  std::vector<StepRequest> run;
};

// What both kinds have in common: the steps that wait, and the sessions that ended.
class GateBase : public StepGate {
 public:
  explicit GateBase(Run run) : run_(std::move(run)) {}

  void Submit(StepRequest request) override {
    Actions actions;
    {
      MutexLock lock(mutex_);
      Admit(std::move(request), actions);
      Advance(actions);
    }
    Perform(std::move(actions));
  }

  void Withdraw(GlobalId step) override {
    Actions actions;
    {
      MutexLock lock(mutex_);
      if (TakeBack(step)) {
        Answer(step, absl::CancelledError("the step was taken back before it was applied"),
               actions);
      }
      Advance(actions);
    }
    Perform(std::move(actions));
  }

  void Leave(GlobalId session, bool ended) override {
    Actions actions;
    {
      MutexLock lock(mutex_);
      if (ended && !ended_.Contains(session)) ended_.Add(session);
      for (const GlobalId& step : Drop(session))
        Answer(step, absl::AbortedError("its trainer has left; the step was not applied"), actions);
      Advance(actions);
    }
    Perform(std::move(actions));
  }

 protected:
  // The ledger's part, under the lock.
  virtual absl::Status Offer(const StepRequest& request) PSD_REQUIRES(mutex_) = 0;
  virtual bool TakeBack(GlobalId step) PSD_REQUIRES(mutex_) = 0;
  virtual std::vector<GlobalId> Drop(GlobalId session) PSD_REQUIRES(mutex_) = 0;
  // Moves what may run now from waiting_ to `actions`.
  virtual void Advance(Actions& actions) PSD_REQUIRES(mutex_) = 0;

  void Perform(Actions actions) PSD_EXCLUDES(mutex_) {
    for (Actions::Answer& answer : actions.answers) answer.request.done(answer.status);
    if (!actions.run.empty()) run_(std::move(actions.run));
  }

  mutable Mutex mutex_;                                             // leaf
  std::map<GlobalId, StepRequest> waiting_ PSD_GUARDED_BY(mutex_);  // by step id

 private:
  void Admit(StepRequest request, Actions& actions) PSD_REQUIRES(mutex_) {
    if (ended_.Contains(request.member.session)) {
      actions.answers.push_back(
          {std::move(request), absl::AbortedError("the caller's session has ended")});
      return;
    }
    const GlobalId step = request.step_id;
    if (auto found = waiting_.find(step); found != waiting_.end()) {
      // A retry: its answer goes to who asked last.
      std::swap(found->second, request);
      actions.answers.push_back(
          {std::move(request), absl::AbortedError("the same step was asked for again")});
      return;
    }
    if (absl::Status offered = Offer(request); !offered.ok()) {
      actions.answers.push_back({std::move(request), std::move(offered)});
      return;
    }
    waiting_.emplace(step, std::move(request));
  }

  void Answer(GlobalId step, absl::Status status, Actions& actions) PSD_REQUIRES(mutex_) {
    auto found = waiting_.find(step);
    if (found == waiting_.end()) return;
    actions.answers.push_back({std::move(found->second), std::move(status)});
    waiting_.erase(found);
  }

  const Run run_;
  StepLog ended_ PSD_GUARDED_BY(mutex_){kRememberedSessions};
};

class RoundGate : public GateBase {
 public:
  RoundGate(uint32_t trainers, Run run) : GateBase(std::move(run)), ledger_(trainers) {}

  Stats stats() const override {
    MutexLock lock(mutex_);
    return {ledger_.members(), ledger_.waiting()};
  }

 private:
  absl::Status Offer(const StepRequest& request) override PSD_REQUIRES(mutex_) {
    if (std::find(last_round_.begin(), last_round_.end(), request.step_id) != last_round_.end()) {
      return absl::UnavailableError("the step is being applied just now; ask again");
    }
    if (!waiting_.empty()) {
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
    return ledger_.Offer(request.member.session, request.step_id);
  }
  bool TakeBack(GlobalId step) override PSD_REQUIRES(mutex_) { return ledger_.Withdraw(step); }
  std::vector<GlobalId> Drop(GlobalId session) override PSD_REQUIRES(mutex_) {
    const std::optional<GlobalId> step = ledger_.Leave(session);
    return step.has_value() ? std::vector<GlobalId>{*step} : std::vector<GlobalId>{};
  }

  void Advance(Actions& actions) override PSD_REQUIRES(mutex_) {
    if (!ledger_.complete()) return;
    std::optional<uint64_t> schedule_step;
    last_round_ = ledger_.Take();
    for (const GlobalId& step : last_round_) {
      auto found = waiting_.find(step);
      schedule_step = std::max(schedule_step, found->second.terms.schedule_step);
      actions.run.push_back(std::move(found->second));
      waiting_.erase(found);
    }
    for (StepRequest& each : actions.run) each.terms.schedule_step = schedule_step;
    // So that sums do not depend on who came first.
    std::sort(
        actions.run.begin(), actions.run.end(),
        [](const StepRequest& a, const StepRequest& b) { return a.member.name < b.member.name; });
  }

  RoundLedger ledger_ PSD_GUARDED_BY(mutex_);
  std::vector<GlobalId> last_round_ PSD_GUARDED_BY(mutex_);  // it may still be running
};

class PaceGate : public GateBase {
 public:
  PaceGate(uint64_t bound, Run run) : GateBase(std::move(run)), ledger_(bound) {}

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
    const std::optional<GlobalId> step = ledger_.Next();
    if (!step.has_value()) return;
    auto found = waiting_.find(*step);
    StepRequest request = std::move(found->second);
    waiting_.erase(found);
    request.done = [this,
                    done = std::move(request.done)](absl::StatusOr<StepResult> result) mutable {
      const bool applied = result.ok() && !result->repeated && !result->skipped;
      done(std::move(result));
      Finish(applied);
    };
    actions.run.push_back(std::move(request));
  }

  void Finish(bool applied) {
    Actions actions;
    {
      MutexLock lock(mutex_);
      ledger_.Finish(applied);
      Advance(actions);
    }
    Perform(std::move(actions));
  }

  PaceLedger ledger_ PSD_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<StepGate> StepGate::Create(const UpdateMode& mode, Run run) {
  switch (mode.kind) {
    case UpdateMode::Kind::kAsynchronous:
      return nullptr;
    case UpdateMode::Kind::kSynchronous:
      return std::make_unique<RoundGate>(mode.trainers, std::move(run));
    case UpdateMode::Kind::kBoundedStaleness:
      if (mode.when_stale == UpdateMode::WhenStale::kRefuse) return nullptr;
      return std::make_unique<PaceGate>(mode.staleness, std::move(run));
  }
  return nullptr;
}

}  // namespace psd::optim
