// The steps of an owner's optimizer: when the values are claimed, they are applied and completed.

#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "core/optim/functional/row_optimizer.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/owner/step_batch.h"
#include "core/optim/owner/step_sweep.h"
#include "kernels/optim/arrays.h"

namespace psd::optim {

using store::Parameter;
using store::WriteClaims;

namespace {

// Answers the steps of the batch that are applied.
void SetResults(StepBatch& batch, const absl::StatusOr<StepResult>& result) {
  for (StepBatch::Step& step : batch.steps)
    if (step.applies) step.result = result;
}

}  // namespace

// The functions and the step count with which a batch is run, as they are at its turn.
struct OwnerOptimizer::RunState {
  GroupFunctions functions;
  uint64_t steps_accepted = 0;
};

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
    return done(SumOfSquares(request.plan));
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
    parameter.ApplyRows(changing, function, plan.gradients[each.number], each.rows, helpers_);
    if (on_devices) sweep.Covers(CurrentStream(parameter.device()));
  }
  // A device takes neighbours of one dtype and step number as one launch, which helpers would
  // divide.
  return sweep.Start(on_devices ? Helpers() : helpers_);
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

}  // namespace psd::optim
