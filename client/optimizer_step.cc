// Takes one step of a DistributedOptimizer: decides its terms once, then applies it on every owner.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/fan_out.h"
#include "client/optimizer_state.h"
#include "client/psd.h"
#include "core/base/remedy.h"
#include "core/optim/steps/step_decision.h"

namespace psd {
namespace {

using optim::StepResult;
using optim::UpdateMode;
using services::PrepareResult;

optim::StepWishes ToWishes(const StepOptions& options, const OptimizerSettings& settings,
                           size_t contexts) {
  optim::StepWishes wishes;
  wishes.clip_value = options.clip_value;
  wishes.clip_norm = options.clip_norm;
  wishes.loss_scale = options.loss_scale;
  wishes.detect_overflow = settings.loss_scaling.enabled();
  wishes.contexts = contexts;
  wishes.mean = options.mean_of_contexts;
  return wishes;
}

absl::Status CheckSeats(uint32_t seats, const UpdateMode& mode) {
  const bool rounds = mode.kind == UpdateMode::Kind::kSynchronous;
  const uint32_t most = rounds ? mode.trainers : 1;
  if (seats >= 1 && seats <= most) return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat("a step for ", seats,
                                                            " seats of an optimizer whose "
                                                            "mode is ",
                                                            mode.ToString())),
                    absl::StrCat("seats must be from 1 to ", most,
                                 rounds ? ", the number of its trainers"
                                        : ", as only synchronous modes have rounds"));
}

absl::Status CheckOptions(const StepOptions& options, const OptimizerSettings& settings,
                          size_t contexts) {
  PSD_RETURN_IF_ERROR(ToWishes(options, settings, contexts).Check());
  PSD_RETURN_IF_ERROR(CheckSeats(options.seats, settings.mode));
  if (settings.loss_scaling.enabled() && options.loss_scale == 0) {
    return absl::InvalidArgumentError(
        "this optimizer scales losses: multiply the loss by LossScale() before Backward and say "
        "so in StepOptions::loss_scale");
  }
  return absl::OkStatus();
}

// Whether the loss scale may have changed unknown to this trainer: its step was applied without an
// answer, or was refused, maybe because the others in its round have another scale.
bool MayNeedAnotherScale(const absl::Status& failed) {
  const auto detail = GetDetail(failed);
  return absl::IsFailedPrecondition(failed) || (detail.has_value() && detail->fate_unknown);
}

OwnerOutcome ToOutcome(const std::string& owner, const absl::StatusOr<StepResult>& answer) {
  OwnerOutcome outcome;
  outcome.owner = owner;
  outcome.status = answer.status();
  if (answer.ok()) {
    outcome.steps_accepted = answer->steps_accepted;
    outcome.parameters_stepped = answer->parameters_stepped;
    outcome.max_staleness = answer->max_staleness;
    outcome.trainers = answer->trainers;
    return outcome;
  }
  auto detail = GetDetail(answer.status());
  outcome.fate_unknown = detail.has_value() && detail->fate_unknown;
  return outcome;
}

absl::Status NoNorm(const std::vector<OptimizerPart>& parts,
                    const std::vector<PrepareResult>& answers) {
  std::vector<std::string> where;
  for (size_t i = 0; i < parts.size(); ++i)
    if (!std::isfinite(answers[i].sum_of_squares)) where.push_back(parts[i].owner);
  return absl::InvalidArgumentError(absl::StrCat(
      "the gradients have no norm to clip by: there is a NaN, an infinity or an overflow among "
      "those on ",
      where.empty() ? "all owners together" : absl::StrJoin(where, ", "), "; nothing was applied"));
}

}  // namespace

absl::Status StepOutcome::status() const {
  if (!refused.ok()) return refused;
  std::vector<std::string> failed, applied;
  const OwnerOutcome* first = nullptr;
  bool fate_unknown = false;
  for (const OwnerOutcome& owner : owners) {
    if (owner.status.ok()) {
      applied.push_back(owner.owner);
      continue;
    }
    if (owner.held_back) continue;
    if (first == nullptr) first = &owner;
    fate_unknown |= owner.fate_unknown;
    failed.push_back(absl::StrCat(owner.owner, " (", absl::StatusCodeToString(owner.status.code()),
                                  ": ", owner.status.message(),
                                  owner.fate_unknown ? "; may have been applied" : "", ")"));
  }
  if (first == nullptr) return absl::OkStatus();
  absl::Status combined(
      first->status.code(),
      absl::StrCat("step ", step_id.ToString(), " failed on ", absl::StrJoin(failed, ", "),
                   applied.empty()
                       ? "; it was applied on no owner"
                       : absl::StrCat("; it was applied on ", absl::StrJoin(applied, ", "))));
  auto detail = GetDetail(first->status).value_or(ErrorDetail{});
  detail.worker = first->owner;
  detail.fate_unknown = fate_unknown;
  return WithDetail(std::move(combined), detail);
}

StepOutcome DistributedOptimizer::StepDetailed(const Context& context, const StepOptions& options) {
  return StepDetailed({&context}, options);
}

StepOutcome DistributedOptimizer::StepDetailed(const std::vector<const Context*>& contexts,
                                               const StepOptions& options) {
  worker::Runtime& runtime = *state_->worker->runtime;
  auto attempt = std::make_shared<StepAttempt>();
  attempt->open = state_->worker->open_steps->Open(runtime.ids());
  attempt->step_id = attempt->open->id();
  attempt->options = options;
  attempt->reached.resize(state_->parts.size());
  for (const Context* context : contexts) {
    StepOutcome unusable;
    unusable.refused = context != nullptr ? context->CheckUsable()
                                          : absl::InvalidArgumentError("a context is null");
    if (!unusable.refused.ok()) return unusable;
    attempt->contexts.push_back(context->id());
    // An owner that this context never reached, not even through others, has collected nothing.
    std::vector<std::string> reached = context->state_->Reached();
    reached.push_back(runtime.name());
    const absl::flat_hash_set<std::string> known(reached.begin(), reached.end());
    for (size_t i = 0; i < state_->parts.size(); ++i)
      if (known.contains(state_->parts[i].owner)) attempt->reached[i].push_back(context->id());
  }
  const OptimizerSettings& settings = state_->settings;
  const bool lead_counts = !settings.schedule.IsConstant() || settings.loss_scaling.enabled();
  for (size_t i = 0; i < state_->parts.size(); ++i) {
    attempt->asked.push_back(!attempt->reached[i].empty() || (i == state_->lead && lead_counts) ||
                             settings.mode.kind != UpdateMode::Kind::kAsynchronous);
  }
  return state_->Run(std::move(attempt));
}

StepOutcome DistributedOptimizer::RetryFailed(const StepOutcome& outcome) {
  if (outcome.attempt == nullptr) {
    StepOutcome refused;
    refused.refused = absl::InvalidArgumentError("RetryFailed needs the outcome of a step");
    return refused;
  }
  if (outcome.status().ok()) return outcome;
  auto attempt = std::make_shared<StepAttempt>(*outcome.attempt);
  if (attempt->decided) {
    for (size_t i = 0; i < outcome.owners.size(); ++i)
      attempt->asked[i] = !outcome.owners[i].status.ok();
  }
  StepOutcome retried = state_->Run(std::move(attempt));
  // The owners of a refused outcome were only asked to measure.
  if (!outcome.attempt->decided || !outcome.refused.ok()) return retried;
  for (size_t i = 0; i < outcome.owners.size() && i < retried.owners.size(); ++i)
    if (outcome.owners[i].status.ok()) retried.owners[i] = outcome.owners[i];
  return retried;
}

absl::Status DistributedOptimizer::State::CheckOwnersLive() const {
  // A single owner keeps all of its state or loses all of it.
  if (parts.size() < 2) return absl::OkStatus();
  for (const OptimizerPart& part : parts) {
    if (worker->runtime->rrefs().CheckUsable(part.optimizer).ok()) continue;
    for (const rpc::PeerStatus& status : worker->runtime->agent().Peers()) {
      if (status.peer.name != part.owner || status.peer.incarnation == 0 ||
          status.peer.incarnation == part.optimizer.body()->owner_incarnation())
        continue;
      if (!name.empty()) return optim::RestartedOwner(name, part.owner);
      return absl::FailedPreconditionError(
          absl::StrCat(part.owner,
                       " was restarted and has lost its part of this private optimizer: look its "
                       "parameters up and create it again"));
    }
  }
  return absl::OkStatus();
}

StepOutcome DistributedOptimizer::State::Run(std::shared_ptr<StepAttempt> attempt) {
  StepOutcome outcome;
  outcome.step_id = attempt->step_id;
  outcome.attempt = attempt;
  outcome.refused = worker->CheckRunning();
  if (outcome.refused.ok()) outcome.refused = CheckOwnersLive();
  if (outcome.refused.ok())
    outcome.refused = CheckOptions(attempt->options, settings, attempt->contexts.size());
  for (const GlobalId& context : attempt->contexts) {
    if (!outcome.refused.ok()) return outcome;
    outcome.refused = worker->runtime->autograd().Find(context).status();
  }
  if (!outcome.refused.ok()) return outcome;
  const optim::StepWishes wishes = ToWishes(attempt->options, settings, attempt->contexts.size());
  if (GoesInRounds(wishes)) {
    RunInRound(*attempt, wishes, outcome);
  } else if (TakesTurns()) {
    RunInTurn(*attempt, outcome);
  } else if (attempt->decided || Decide(*attempt, outcome)) {
    Apply(*attempt, outcome);
  }
  const absl::Status status = outcome.status();
  if (status.ok()) attempt->open.reset();  // it needs no retry
  if (settings.loss_scaling.enabled() && MayNeedAnotherScale(status))
    RefreshLossScale(attempt->options.timeout).IgnoreError();
  return outcome;
}

bool DistributedOptimizer::State::TakesTurns() const {
  return settings.mode.kind == UpdateMode::Kind::kBoundedStaleness &&
         settings.mode.when_stale == UpdateMode::WhenStale::kWait && parts.size() > 1;
}

void DistributedOptimizer::State::RunInTurn(StepAttempt& attempt, StepOutcome& outcome) {
  const RRef& leader = parts[lead].optimizer;
  // Each attempt has its own turn, so a failed step whose outcome is kept does not keep a turn
  // open.
  const auto turn = worker->open_turns->Open(worker->runtime->ids());
  outcome.refused = service()
                        .TakeTurn(leader, {turn->id(), worker->open_turns->first(), life},
                                  worker->ToCallOptions({attempt.options.timeout}))
                        .Wait()
                        .status();
  bool applied = false;
  if (outcome.refused.ok() && (attempt.decided || Decide(attempt, outcome))) {
    Apply(attempt, outcome);
    // A step whose fate is unknown counts as applied.
    applied = !outcome.skipped && std::any_of(outcome.owners.begin(), outcome.owners.end(),
                                              [](const OwnerOutcome& each) {
                                                return each.status.ok() || each.fate_unknown;
                                              });
  }
  service().EndTurn(leader, turn->id(), applied);
}

bool DistributedOptimizer::State::GoesInRounds(const optim::StepWishes& wishes) const {
  return settings.mode.kind == UpdateMode::Kind::kSynchronous &&
         (parts.size() > 1 || wishes.NeedsMeasure());
}

void DistributedOptimizer::State::RunInRound(StepAttempt& attempt, const optim::StepWishes& wishes,
                                             StepOutcome& outcome) {
  // An owner refuses the steps of a session that has ended. The other members of the round would
  // wait there for a turn that nobody ends.
  for (const OptimizerPart& part : parts) {
    outcome.refused = worker->runtime->rrefs().CheckUsable(part.optimizer);
    if (!outcome.refused.ok()) return;
  }
  // Some owners may have applied the step already, so a round that is skipped does not end it.
  const bool begun = attempt.decided && !attempt.terms.overflow;
  // The lead may have counted the step as skipped, and would then not apply it any more.
  const bool was_skipped = attempt.decided && attempt.terms.overflow;
  const auto turn = worker->open_turns->Open(worker->runtime->ids());
  services::TurnCall call{turn->id(), worker->open_turns->first(), life};
  optim::StepWishes unmeasured = wishes;
  unmeasured.clip_norm = std::numeric_limits<double>::infinity();
  unmeasured.detect_overflow = false;
  call.wishes = {optim::DecideStep(unmeasured, {}).terms, wishes.clip_norm, wishes.NeedsMeasure()};
  call.seats = attempt.options.seats;
  const auto answer =
      service()
          .TakeTurn(parts[lead].optimizer, call, worker->ToCallOptions({attempt.options.timeout}))
          .Wait();
  std::fill(attempt.asked.begin(), attempt.asked.end(), true);
  outcome.refused = answer.status();
  if (answer.ok()) {
    attempt.round = {turn->id(), call.ended_before, answer->round};
    attempt.lead_steps = answer->steps_accepted;
    if (Decide(attempt, outcome)) {
      if (begun && attempt.terms.overflow) {
        attempt.terms.overflow = false;
        outcome.owners.clear();
        outcome.refused = WithRemedy(
            absl::AbortedError("the round of this retry was skipped, because gradients overflowed"),
            "try again");
      } else if (was_skipped && !attempt.terms.overflow) {
        attempt.terms.overflow = true;
        outcome.owners.clear();
        outcome.refused = WithRemedy(
            absl::AbortedError("the step was skipped before, because gradients overflowed"),
            "compute a new step");
      } else {
        Apply(attempt, outcome);
      }
    }
  }
  // On the owners where this member has not stepped, the other members wait for it until they are
  // told that it does not come.
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool stepped = outcome.refused.ok() && i < outcome.owners.size() && attempt.asked[i] &&
                         outcome.owners[i].status.ok();
    if (!stepped) service().EndTurn(parts[i].optimizer, turn->id(), /*applied=*/false);
  }
}

bool DistributedOptimizer::State::Decide(StepAttempt& attempt, StepOutcome& outcome) {
  const optim::StepWishes wishes = ToWishes(attempt.options, settings, attempt.contexts.size());
  const auto asked = std::count(attempt.asked.begin(), attempt.asked.end(), true);
  // A single owner uses its own count of steps. In a round the lead has told its count before.
  const bool in_round = attempt.round.word.number != 0;
  const bool lead_decides = !settings.schedule.IsConstant() && asked > 1;
  std::vector<PrepareResult> answers(parts.size());
  if (wishes.NeedsMeasure() || attempt.options.check_first || (lead_decides && !in_round)) {
    if (!Prepare(attempt, wishes.NeedsMeasure(), answers, outcome)) return false;
  }  // otherwise the step needs no exchange before it
  std::vector<double> sums;
  if (wishes.NeedsMeasure()) {
    // The sums are added in the order of the owners' names, so that all trainers get the same bits.
    std::map<std::string, double> by_owner;
    for (size_t i = 0; i < parts.size(); ++i) by_owner[parts[i].owner] = answers[i].sum_of_squares;
    for (const auto& [owner, sum] : by_owner) sums.push_back(sum);
  }
  const optim::StepDecision decision = DecideStep(wishes, sums);
  if (!wishes.detect_overflow && !std::isfinite(decision.gradient_norm)) {
    outcome.refused = NoNorm(parts, answers);
    return false;
  }
  attempt.decided = true;
  attempt.terms = decision.terms;
  attempt.gradient_norm = decision.gradient_norm;
  if (lead_decides) {
    attempt.terms.schedule_step = in_round ? attempt.lead_steps : answers[lead].steps_accepted;
  }
  if (attempt.terms.overflow)  // only the lead, which keeps the scale, must know
    for (size_t i = 0; i < parts.size(); ++i) attempt.asked[i] = i == lead;
  return true;
}

// Asks all owners that take part in the step to measure or check. If there is nothing to measure or
// check, asks only the lead, for its count of steps.
bool DistributedOptimizer::State::Prepare(const StepAttempt& attempt, bool measure,
                                          std::vector<PrepareResult>& answers,
                                          StepOutcome& outcome) {
  const auto prepared = AskParts<PrepareResult>(parts, [&](size_t i) {
    const bool prepares = attempt.asked[i] && (measure || attempt.options.check_first || i == lead);
    if (!prepares) return Future<PrepareResult>::Ready(PrepareResult{});
    return service().Prepare(parts[i].optimizer,
                             {attempt.step_id,
                              attempt.reached[i],
                              {},
                              worker->open_steps->first(),
                              false,
                              life,
                              attempt.round,
                              attempt.options.seats},
                             measure, worker->ToCallOptions({attempt.options.timeout}));
  });
  bool failed = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::StatusOr<PrepareResult>& answer = prepared[i];
    OwnerOutcome& owner = outcome.owners.emplace_back();
    owner.owner = parts[i].owner;
    owner.status = answer.status();
    failed |= !answer.ok();
    if (answer.ok()) answers[i] = *answer;
  }
  if (!failed) return true;
  for (OwnerOutcome& owner : outcome.owners) {
    if (!owner.status.ok()) continue;
    owner.status = absl::AbortedError("not applied: another owner could not apply it");
    owner.held_back = true;
  }
  return false;
}

void DistributedOptimizer::State::Apply(const StepAttempt& attempt, StepOutcome& outcome) {
  outcome.gradient_norm = attempt.gradient_norm;
  outcome.skipped = attempt.terms.overflow;
  outcome.owners.clear();
  const auto answers = AskParts<StepResult>(parts, [&](size_t i) {
    if (!attempt.asked[i]) {
      StepResult nothing;
      nothing.trainers = 0;
      return Future<StepResult>::Ready(nothing);
    }
    return service().Step(
        parts[i].optimizer,
        {attempt.step_id, attempt.reached[i], attempt.terms, worker->open_steps->first(),
         TakesTurns(), life, attempt.round, attempt.options.seats},
        worker->ToCallOptions({attempt.options.timeout}));
  });
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::StatusOr<StepResult>& answer = answers[i];
    outcome.owners.push_back(ToOutcome(parts[i].owner, answer));
    if (i == lead && attempt.asked[i] && answer.ok() && settings.loss_scaling.enabled())
      loss_scale = answer->loss_scale;
  }
}

}  // namespace psd
