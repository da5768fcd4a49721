#include "core/optim/owner/owner_optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/owner/parameter_groups.h"
#include "core/optim/owner/step_batch.h"

namespace psd::optim {
namespace {

using store::WriteClaims;

std::vector<OptimizerSpec> SpecsOf(absl::Span<const FunctionPtr> functions) {
  std::vector<OptimizerSpec> specs;
  for (const FunctionPtr& function : functions) specs.push_back(function->spec());
  return specs;
}

}  // namespace

OwnerOptimizer::OwnerOptimizer(OptionGroups groups, ParameterTable table,
                               const OptimizerSettings& settings, const OptimizerRegistry& registry,
                               store::Store& store, ChangeApplier& changes, const Helpers& helpers,
                               Executor* large_steps, const HostedAs& hosted,
                               CompletionThreads* completions)
    : registry_(registry),
      store_(store),
      changes_(changes),
      helpers_(helpers),
      large_steps_(large_steps),
      completions_(completions),
      claim_id_(hosted.id.IsNone() ? store.NewId() : hosted.id),
      settings_(settings),
      created_(SpecsOf(groups.functions())),
      type_(created_[0].type),
      table_(std::move(table)),
      groups_(std::move(groups)),
      loss_scale_(settings.loss_scaling),
      staleness_(table_.size()),
      measure_(table_, settings.mode),
      gate_(StepGate::Create(
          settings.mode, [this](const StepRequest& request) { return FindKnown(request); },
          [this](std::vector<StepRequest> steps) { Run(std::move(steps)); }, Turns())) {
  described_ = hosted.named;
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].device() != nullptr) has_devices_ = true;
    for (const StateArray& array : table_[i].state()) state_bytes_ += array.bytes;
    described_ |= !table_[i].entry()->name.empty();
  }
}

std::string OwnerOptimizer::TypeName() const {
  return absl::StrCat("optimizer/", type_);
}

size_t OwnerOptimizer::num_groups() const {
  MutexLock lock(mutex_);
  return groups_.size();
}

OptimizerLife OwnerOptimizer::life() const {
  MutexLock lock(mutex_);
  return book_.life();
}

// ---- steps

void OwnerOptimizer::Withdraw(uint64_t ticket) {
  if (gate_ != nullptr) gate_->Withdraw(ticket);
}

void OwnerOptimizer::GiveUp(uint64_t incarnation, uint64_t before) {
  if (gate_ != nullptr) gate_->GiveUp(incarnation, before);
}

void OwnerOptimizer::Leave(GlobalId session, uint64_t before) {
  if (gate_ != nullptr) gate_->Leave(session, before);
}

void OwnerOptimizer::GiveSeats(GlobalId session, uint64_t before) {
  if (gate_ != nullptr) gate_->GiveSeats(session, before);
}

void OwnerOptimizer::CloseGate(const absl::Status& why) {
  if (gate_ != nullptr) gate_->Close(why);
}

void OwnerOptimizer::Step(StepRequest request) {
  if (request.seats != 1 && settings_.mode.kind != UpdateMode::Kind::kSynchronous) {
    return request.done(
        WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                       "a step for ", request.seats, " seats of an optimizer whose mode is ",
                       settings_.mode.ToString(), ", which has no rounds")),
                   "create it with a synchronous mode, or step for one seat"));
  }
  if (has_devices_ && described() && changes_.HasJournal()) {
    if (absl::Status here = BringToHost(request.plan); !here.ok()) return request.done(here);
  }
  if (gate_ != nullptr && !(request.in_turn && TakesTurns()))
    return gate_->Submit(std::move(request));
  auto batch = std::make_unique<StepBatch>();
  batch->steps.emplace_back(std::move(request));
  batch->stream = StreamOf(*batch);
  Start(std::move(batch));
}

void OwnerOptimizer::Run(std::vector<StepRequest> steps) {
  if (steps[0].measures) return RunMeasure(std::move(steps));
  auto batch = std::make_unique<StepBatch>();
  for (StepRequest& step : steps) batch->steps.emplace_back(std::move(step));
  batch->stream = StreamOf(*batch);
  Start(std::move(batch));
}

void OwnerOptimizer::RunMeasure(std::vector<StepRequest> steps) {
  int64_t elements = 0;
  std::set<GlobalId> applied;
  for (const StepRequest& step : steps) {
    elements += ElementsOf(step.plan);
    MutexLock lock(mutex_);
    if (book_.WasApplied(step)) applied.insert(step.step_id);
  }
  const FlowId flow = steps[0].member.flow;
  RunSized(/*light=*/!has_devices_ && elements <= kInlineElements, flow,
           [self = shared_from_this(), steps = std::move(steps), applied]() mutable {
             self->measure_.Run(std::move(steps), applied);
           });
}

void OwnerOptimizer::RunSized(bool light, FlowId flow, Task run) {
  if (large_steps_ == nullptr || light) return run();
  // Shared with the executor, which destroys a task that it refuses.
  auto task = std::make_shared<Task>(std::move(run));
  const absl::Status queued =
      large_steps_->SubmitAs({WorkLabel::Kind::kOwn, flow}, [task] { (*task)(); });
  if (!queued.ok()) (*task)();
}

void OwnerOptimizer::TakeTurn(StepRequest request) {
  if (gate_ == nullptr) return request.done(StepResult{});
  request.takes_turn = true;
  // `this` is enough: the gate keeps the request while it waits for the turn, and calls it only in
  // calls of this object.
  request.done = [this, done = std::move(request.done)](absl::StatusOr<StepResult> result) mutable {
    if (result.ok()) {
      const Stats now = stats();
      // The schedule of the step that comes next counts those under way.
      result->steps_accepted = now.steps + now.under_way;
    }
    done(std::move(result));
  };
  gate_->Submit(std::move(request));
}

void OwnerOptimizer::EndTurn(GlobalId session, GlobalId turn, bool applied) {
  if (gate_ == nullptr) return;
  {
    MutexLock lock(mutex_);
    book_.EndTurn(session, turn);
  }
  gate_->EndTurn(turn, applied);
}

std::optional<absl::StatusOr<StepResult>> OwnerOptimizer::FindKnown(const StepRequest& request) {
  if (request.measures && !request.takes_turn) {
    if (auto measured = measure_.Find(request.round.turn); measured.has_value()) return measured;
  }
  MutexLock lock(mutex_);
  const std::optional<absl::Status> found = book_.FindWaiting(request);
  if (!found.has_value()) return std::nullopt;
  if (!found->ok()) return *found;
  return RepeatedResult();
}

StepGate::Turns OwnerOptimizer::Turns() {
  const auto expects = [this](GlobalId turn) {
    MutexLock lock(mutex_);
    return book_.Expects(turn);
  };
  const auto end = [this](GlobalId turn) {
    MutexLock lock(mutex_);
    book_.EndTurn(turn);
  };
  return {expects, end};
}

void OwnerOptimizer::Join(GlobalId session, uint64_t turns_ended_before) {
  if (gate_ == nullptr) return;
  std::optional<GlobalId> former;
  {
    MutexLock lock(mutex_);
    former = book_.Join(session, turns_ended_before);
  }
  gate_->Join(session);
  if (former.has_value()) gate_->Leave(*former, 0);
  // The session may have ended on another thread before the gate knew of it.
  bool ended = false;
  {
    MutexLock lock(mutex_);
    ended = book_.HasEnded(session);
  }
  if (ended) gate_->Leave(session, 0);
}

void OwnerOptimizer::EndSession(GlobalId session) {
  {
    MutexLock lock(mutex_);
    book_.EndSession(session, /*waits=*/gate_ != nullptr);
  }
  Leave(session, 0);
}

StepResult OwnerOptimizer::RepeatedResult() const {
  StepResult result;
  result.steps_accepted = steps_;
  result.loss_scale = loss_scale_.scale();
  result.repeated = true;
  return result;
}

// ---- options and state

absl::StatusOr<GroupOptions> OwnerOptimizer::options(size_t group) const {
  MutexLock lock(mutex_);
  return groups_.Get(group);
}

void OwnerOptimizer::SetOptions(size_t group, std::map<std::string, double> changes,
                                uint64_t version, GlobalId life,
                                absl::AnyInvocable<void(absl::StatusOr<GroupOptions>)> done) {
  store_.write_claims().Claim(
      {claim_id_}, [self = shared_from_this(), group, changes = std::move(changes), version, life,
                    done = std::move(done)](WriteClaims::ClaimId claim) mutable {
        absl::StatusOr<GroupOptions> changed = self->ChangeOptions(group, changes, version, life);
        self->store_.write_claims().Release(claim);
        done(std::move(changed));
      });
}

absl::StatusOr<GroupOptions> OwnerOptimizer::ChangeOptions(
    size_t group, const std::map<std::string, double>& changes, uint64_t version, GlobalId life) {
  MutexLock deciding(deciding_);
  OptionsChange change{this, group, {}, version};
  {
    MutexLock lock(mutex_);
    // A load names no life, and sets the options of parts whose load it has not finished.
    const bool by_load = life.IsNone() && book_.life().stage == LifeStage::kLoading;
    if (!by_load) PSD_RETURN_IF_ERROR(CheckLife(life, book_.life()));
    PSD_ASSIGN_OR_RETURN(GroupOptions current, groups_.Get(group));
    if (version != 0 && version < current.version) return current;
    if (version == 0) change.version = current.version + 1;
    change.options = std::move(current.spec.options);
  }
  for (const auto& [name, value] : changes) change.options[name] = value;
  PSD_RETURN_IF_ERROR(changes_.Apply(change));
  return options(group);
}

absl::Status OwnerOptimizer::Apply(store::Changing, const OptionsChange& change) {
  const auto check = [&](const FunctionalOptimizer& changed) {
    return CheckFunction(change.group, changed);
  };
  MutexLock lock(mutex_);
  return groups_.Change(change.group, change.options, change.version, registry_, check).status();
}

absl::Status OwnerOptimizer::CheckFunction(size_t group,
                                           const FunctionalOptimizer& function) const {
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].group() != group) continue;
    PSD_RETURN_IF_ERROR(Annotate(table_[i].CheckOptions(function), table_[i].entry()->Label()));
  }
  return absl::OkStatus();
}

absl::StatusOr<GroupFunctions> OwnerOptimizer::FunctionsWith(
    absl::Span<const std::map<std::string, double>> options) const {
  MutexLock lock(mutex_);
  GroupFunctions functions = groups_.functions();
  if (options.empty()) return functions;
  if (options.size() != functions.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "options of ", options.size(), " groups for an optimizer with ", functions.size()));
  }
  for (size_t i = 0; i < functions.size(); ++i) {
    const auto check = [&](const FunctionalOptimizer& each) { return CheckFunction(i, each); };
    PSD_ASSIGN_OR_RETURN(functions[i], groups_.With(i, options[i], registry_, check));
  }
  return functions;
}

// ---- statistics

OwnerOptimizer::Stats OwnerOptimizer::stats() const {
  Stats stats;
  stats.state_bytes = state_bytes_;
  if (gate_ != nullptr) {
    stats.members = gate_->stats().members;
    stats.waiting = gate_->stats().waiting;
  }
  MutexLock lock(mutex_);
  stats.steps = steps_;
  stats.under_way = changes_under_way_;
  stats.skipped = skipped_;
  stats.max_staleness = staleness_.all().most;
  stats.mean_staleness = staleness_.all().mean();
  stats.loss_scale = loss_scale_.scale();
  stats.good_steps = loss_scale_.good_steps();
  return stats;
}

std::vector<ParameterStaleness> OwnerOptimizer::staleness(size_t limit) const {
  std::vector<ParameterStaleness> all;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < staleness_.entries().size(); ++i) {
      const StalenessRecord::Entry& entry = staleness_.entries()[i];
      if (entry.steps == 0) continue;
      const store::Entry& parameter = *table_[i].entry();
      all.push_back({parameter.name.empty() ? parameter.id.ToString() : parameter.name, entry.last,
                     entry.most, entry.mean(), entry.steps});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.most != b.most ? a.most > b.most : a.mean > b.mean;
  });
  if (all.size() > limit) all.resize(limit);
  return all;
}

absl::StatusOr<std::shared_ptr<OwnerOptimizer>> OwnerOptimizer::Create(
    std::vector<ParameterGroup> groups, const OptimizerSettings& settings,
    const OptimizerRegistry& registry, store::Store& store, ChangeApplier& changes,
    const Helpers& helpers, Executor* large_steps, const HostedAs& hosted,
    CompletionThreads* completions) {
  PSD_ASSIGN_OR_RETURN(ReservedGroups reserved,
                       ReserveGroups(std::move(groups), settings, registry, store.memory()));
  return std::shared_ptr<OwnerOptimizer>(new OwnerOptimizer(
      std::move(reserved.options), ParameterTable(std::move(reserved.parameters)), settings,
      registry, store, changes, helpers, large_steps, hosted, completions));
}

}  // namespace psd::optim
