#include "core/optim/owner/owner_optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/functional/row_optimizer.h"
#include "core/optim/owner/parameter_groups.h"
#include "core/optim/owner/step_batch.h"
#include "core/optim/owner/step_sweep.h"
#include "kernels/optim/arrays.h"

namespace psd::optim {
namespace {

using store::Parameter;
using store::WriteClaims;

std::vector<OptimizerSpec> SpecsOf(absl::Span<const FunctionPtr> functions) {
  std::vector<OptimizerSpec> specs;
  for (const FunctionPtr& function : functions) specs.push_back(function->spec());
  return specs;
}

}  // namespace

// The functions and the step count with which a batch is run, as they are at its turn.
struct OwnerOptimizer::RunState {
  GroupFunctions functions;
  uint64_t steps_accepted = 0;
};

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
  RunSized(/*light=*/elements <= kInlineElements, flow,
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

const Stream* OwnerOptimizer::StreamOf(const StepBatch& batch) const {
  if (!has_devices_ || completions_ == nullptr) return nullptr;
  Device* const device = OnlyDevice(batch.steps[0].request.plan);
  const auto is_work_there = [&](const StepBatch::Step& step) {
    return !step.request.terms.overflow && OnlyDevice(step.request.plan) == device;
  };
  const bool all = std::all_of(batch.steps.begin(), batch.steps.end(), is_work_there);
  return all && device != nullptr ? &device->default_stream() : nullptr;
}

void OwnerOptimizer::Start(std::unique_ptr<StepBatch> batch) {
  std::vector<GlobalId> ids = ClaimedIds(*batch, claim_id_);
  const Stream* const stream = batch->stream;
  auto run = [self = shared_from_this(),
              batch = std::move(batch)](WriteClaims::ClaimId claim) mutable {
    const FlowId flow = batch->steps[0].request.member.flow;
    const bool light = !self->has_devices_ && StepElements(*batch, self->table_) <= kInlineElements;
    self->RunSized(light, flow, [self, claim, batch = std::move(batch)]() mutable {
      self->Perform(std::move(batch), claim);
    });
  };
  store_.write_claims().Claim(std::move(ids), std::move(run), stream);
}

void OwnerOptimizer::Perform(std::unique_ptr<StepBatch> batch, WriteClaims::ClaimId claim) {
  const bool hands_on = batch->stream != nullptr;
  if (hands_on && IsRepeatedUnderWay(*batch)) {
    // Without a stream, the batch waits until the first attempt is complete.
    batch->stream = nullptr;
    store_.write_claims().Release(claim);
    return Start(std::move(batch));
  }
  Apply(*batch);
  const DeviceEvent written = batch->change.under_way.written;
  if (written.event == nullptr) return Finish(*batch, claim);
  if (hands_on) AnnounceUnderWay(*batch);
  auto complete = [self = shared_from_this(), batch = std::move(batch),
                   claim](absl::Status passed) {
    self->Complete(*batch, std::move(passed));
    self->Finish(*batch, claim);
  };
  if (completions_ == nullptr) return complete(written.event->Wait());
  completions_->OnPassed(written, std::move(complete));
  // Only now, so that steps are completed in their order.
  if (hands_on) store_.write_claims().HandOn(claim);
}

void OwnerOptimizer::AnnounceUnderWay(StepBatch& batch) {
  for (StepBatch::Step& step : batch.steps)
    if (step.applies && step.request.under_way != nullptr) step.request.under_way();
}

bool OwnerOptimizer::IsRepeatedUnderWay(const StepBatch& batch) const {
  MutexLock lock(mutex_);
  for (const StepBatch::Step& step : batch.steps)
    if (steps_under_way_.count(step.request.step_id) > 0) return true;
  return false;
}

void OwnerOptimizer::Finish(StepBatch& batch, WriteClaims::ClaimId claim) {
  batch.merged.reset();
  for (StepBatch::Step& step : batch.steps) step.request.plan = {};
  store_.write_claims().Release(claim);
  for (StepBatch::Step& step : batch.steps) step.request.done(std::move(step.result));
}

namespace {

// Answers the steps of the batch that are applied.
void SetResults(StepBatch& batch, const absl::StatusOr<StepResult>& result) {
  for (StepBatch::Step& step : batch.steps)
    if (step.applies) step.result = result;
}

}  // namespace

void OwnerOptimizer::Apply(StepBatch& batch) {
  RunState state = Begin(batch);
  StepChange& change = batch.change;
  absl::StatusOr<std::optional<StepPlan>> merged =
      MergeSteps(batch, table_, settings_.mode, state.functions, change.terms);
  if (!merged.ok()) return SetResults(batch, merged.status());
  if (!merged->has_value()) return;
  batch.merged = *std::move(merged);
  change.optimizer = this;
  for (const StepBatch::Step& step : batch.steps) {
    if (!step.applies) continue;
    const StepRequest& request = step.request;
    change.steps.push_back(
        {request.member.session, request.step_id, request.ended_before, request.seats});
  }
  if (!change.terms.overflow) {
    change.scheduled = !settings_.schedule.IsConstant();
    if (change.scheduled) {
      const uint64_t step = change.terms.schedule_step.value_or(state.steps_accepted);
      absl::Status ready = ApplySchedule(settings_.schedule, step, registry_, state.functions);
      if (!ready.ok()) return SetResults(batch, ready);
    }
    change.functions = std::move(state.functions);
    change.plan = &*batch.merged;
    change.rounding_seeds = change.plan->indices;
  }
  if (absl::Status applied = changes_.Apply(change); !applied.ok())
    return SetResults(batch, applied);
  if (change.under_way.written.event == nullptr) SetResults(batch, change.result);
}

void OwnerOptimizer::Complete(StepBatch& batch, absl::Status passed) {
  const absl::Status completed = changes_.Complete(batch.change, std::move(passed));
  SetResults(batch, completed.ok() ? absl::StatusOr<StepResult>(batch.change.result) : completed);
}

absl::Status OwnerOptimizer::Apply(store::Changing changing, StepChange& change) {
  if (change.terms.overflow) {
    RecordOverflow(change);
    return absl::OkStatus();
  }
  StepChange::UnderWay& under_way = change.under_way;
  std::vector<Parameter*> versions;
  versions.reserve(change.plan->indices.size());
  for (size_t index : change.plan->indices) {
    if (Parameter* each = table_.versions(index); each != nullptr) {
      versions.push_back(each);
    } else {
      under_way.table_versions.push_back(table_[index].version());
    }
  }
  PSD_ASSIGN_OR_RETURN(under_way.writes, Parameter::BeginWrite(changing, versions));
  if (absl::Status ran = RunKernels(changing, change); !ran.ok()) {
    Parameter::AbandonWrite(changing, versions);
    return ran;
  }
  Parameter::Publish(changing, versions, under_way.written.event);
  if (under_way.written.event == nullptr) {
    Record(change);
  } else {
    BeginUnderWay(change);
  }
  return absl::OkStatus();
}

// After an error the device is lost for ever, and nobody can read what is on it. So the parameters
// need not be brought back to where they were before the step, while the next step, which fails as
// well, may be adding its work.
absl::Status OwnerOptimizer::Complete(store::Changing, StepChange& change, absl::Status passed) {
  if (passed.ok()) {
    Record(change);
  } else {
    MutexLock lock(mutex_);
    EndUnderWay(change);
  }
  change.under_way.memory.clear();
  return passed;
}

void OwnerOptimizer::BeginUnderWay(const StepChange& change) {
  MutexLock lock(mutex_);
  ++changes_under_way_;
  for (const StepChange::Ended& each : change.steps) steps_under_way_.insert(each.step);
}

void OwnerOptimizer::EndUnderWay(const StepChange& change) {
  --changes_under_way_;
  for (const StepChange::Ended& each : change.steps) steps_under_way_.erase(each.step);
}

OwnerOptimizer::RunState OwnerOptimizer::Begin(StepBatch& batch) {
  RunState state;
  MutexLock lock(mutex_);
  // If one of those under way fails, so does this batch.
  state.steps_accepted = steps_ + changes_under_way_;
  state.functions = groups_.functions();
  for (StepBatch::Step& step : batch.steps) {
    const std::optional<absl::Status> known = book_.Find(step.request);
    if (!known.has_value()) continue;
    step.applies = false;
    step.result = known->ok() ? absl::StatusOr<StepResult>(RepeatedResult()) : *known;
  }
  return state;
}

void OwnerOptimizer::Measure(StepRequest request,
                             absl::AnyInvocable<void(absl::StatusOr<double>)> done) {
  if (settings_.mode.kind != UpdateMode::Kind::kSynchronous) {
    if (absl::Status rounded = table_.Round(request.plan); !rounded.ok()) return done(rounded);
    return done(table_.SumOfSquares(request.plan));
  }
  request.measures = true;
  request.done = [done = std::move(done)](absl::StatusOr<StepResult> result) mutable {
    if (!result.ok()) return done(result.status());
    done(result->sum_of_squares);
  };
  gate_->Submit(std::move(request));
}

absl::Status OwnerOptimizer::Check(const StepPlan& plan) const {
  GroupFunctions functions;
  {
    MutexLock lock(mutex_);
    functions = groups_.functions();
  }
  return CheckStep(plan, table_, settings_.mode, functions);
}

Device* OwnerOptimizer::OnlyDevice(const StepPlan& plan) const {
  if (plan.indices.empty()) return nullptr;
  Device* const device = table_[plan.indices[0]].device();
  const auto is_there = [&](size_t index) { return table_[index].device() == device; };
  return std::all_of(plan.indices.begin(), plan.indices.end(), is_there) ? device : nullptr;
}

// Each parameter is stepped independently of the others, so their order does not matter. Those on
// devices come first, because steps on the host cannot fail. A step in several places waits for its
// devices, because one of them may fail, and then none may show a new version.
absl::Status OwnerOptimizer::RunKernels(store::Changing changing, StepChange& change) {
  if (!has_devices_) return RunKernelsWhere(changing, change, /*on_devices=*/false).status();
  const StepPlan& plan = *change.plan;
  StepChange::UnderWay& under_way = change.under_way;
  std::vector<int64_t> steps_before;
  for (size_t index : plan.indices) steps_before.push_back(table_[index].steps());
  const absl::StatusOr<std::vector<DeviceEvent>> there =
      RunKernelsWhere(changing, change, /*on_devices=*/true);
  if (there.ok() && there->size() == 1 && OnlyDevice(plan) != nullptr) {
    under_way.written = there->front();
    return absl::OkStatus();
  }
  absl::Status done = there.status();
  if (there.ok()) {
    for (const DeviceEvent& each : *there) done.Update(each.event->Wait());
  } else {
    // Work that was added to streams may still use the memory of the step.
    for (size_t index : plan.indices)
      if (Device* const device = table_[index].device(); device != nullptr)
        device->Synchronize().IgnoreError();
  }
  under_way.memory.clear();
  if (done.ok()) return RunKernelsWhere(changing, change, /*on_devices=*/false).status();
  for (size_t i = 0; i < plan.indices.size(); ++i)
    table_[plan.indices[i]].AbandonStep(changing, steps_before[i]);
  return done;
}

absl::StatusOr<std::vector<DeviceEvent>> OwnerOptimizer::RunKernelsWhere(store::Changing changing,
                                                                         StepChange& change,
                                                                         bool on_devices) {
  const StepPlan& plan = *change.plan;
  StepSweep sweep(change.functions, change.terms, plan.indices.size());
  struct Alone {  // a parameter that the sweep does not step
    size_t number;
    RowArrays rows;
  };
  std::vector<Alone> alone;
  auto write = change.under_way.writes.begin();
  for (size_t i = 0; i < plan.indices.size(); ++i) {
    const size_t index = plan.indices[i];
    kernels::OptimArrays arrays;
    arrays.rounding_seed = change.rounding_seeds[i];
    Parameter::Write versions;
    if (table_.versions(index) != nullptr) versions = *write++;
    arrays.parameter = versions.current;
    arrays.next = versions.spare;
    SteppedParameter& parameter = table_[index];
    if (has_devices_ && (parameter.device() != nullptr) != on_devices) continue;
    PSD_ASSIGN_OR_RETURN(const bool begun, parameter.BeginStep(changing, plan.gradients[i], arrays,
                                                               change.under_way.memory));
    if (begun) {
      sweep.Add(parameter.group(), CurrentStream(parameter.device()), parameter.dtype(),
                parameter.steps(), arrays);
    } else {
      RowArrays& rows = alone.emplace_back(Alone{i, {}}).rows;
      rows.table = versions.current;
      rows.next = versions.spare;
      rows.gradient_scale = change.terms.gradient_scale;
      rows.gradient_limit = change.terms.gradient_limit;
    }
  }
  for (const Alone& each : alone) {
    SteppedParameter& parameter = table_[plan.indices[each.number]];
    const RowOptimizer& function = *change.functions[parameter.group()]->rows();
    parameter.ApplyRows(changing, function, plan.gradients[each.number], each.rows);
    if (on_devices) sweep.Covers(CurrentStream(parameter.device()));
  }
  return sweep.Start(helpers_);
}

void OwnerOptimizer::Record(StepChange& change) {
  const StepPlan& plan = *change.plan;
  StepResult& result = change.result;
  result.parameters_stepped = static_cast<int>(plan.indices.size());
  uint32_t seats = 0;
  for (const StepChange::Ended& each : change.steps) seats += each.seats;
  result.trainers = static_cast<int>(seats);
  MutexLock lock(mutex_);
  if (change.under_way.written.event != nullptr) EndUnderWay(change);
  auto write = change.under_way.writes.begin();
  auto table_version = change.under_way.table_versions.begin();
  for (size_t i = 0; i < plan.indices.size(); ++i) {
    const size_t index = plan.indices[i];
    const uint64_t current =  // the version that the step was applied to
        table_.versions(index) != nullptr ? (write++)->version : *table_version++;
    result.max_staleness = std::max(
        result.max_staleness, staleness_.Add(index, plan.gradients[i].version.oldest(), current));
  }
  if (change.terms.loss_scale != 0) loss_scale_.Record(change.terms.loss_scale, /*overflow=*/false);
  result.steps_accepted = ++steps_;
  result.loss_scale = loss_scale_.scale();
  for (const StepChange::Ended& each : change.steps)
    book_.End(each.session, each.step, each.ended_before);
}

void OwnerOptimizer::RecordOverflow(StepChange& change) {
  MutexLock lock(mutex_);
  loss_scale_.Record(change.terms.loss_scale, /*overflow=*/true);
  ++skipped_;
  change.result.steps_accepted = steps_;
  change.result.loss_scale = loss_scale_.scale();
  change.result.skipped = true;
  for (const StepChange::Ended& each : change.steps)
    book_.End(each.session, each.step, each.ended_before);
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
