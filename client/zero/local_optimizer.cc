#include "client/zero/local_optimizer.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/runtime_of.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "core/change/changes.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/optimizer_life.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/services/optimizers/collected_gradients.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/store/parameter.h"
#include "core/store/write_claims.h"

namespace psd::zero {
namespace {

// Holds write claims: no step of these values runs while it lives.
class Claims {
 public:
  Claims(store::Store& store, std::vector<GlobalId> ids) : claims_(store.write_claims()) {
    Promise<Unit> granted;
    claim_ = claims_.Claim(std::move(ids),
                           [granted](store::WriteClaims::ClaimId) { granted.Set(Unit{}); });
    granted.future().Wait().IgnoreError();  // it has no error
  }
  ~Claims() { claims_.Release(claim_); }
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;

 private:
  store::WriteClaims& claims_;
  store::WriteClaims::ClaimId claim_ = 0;
};

rpc::CallOptions WithoutTimeout() {
  rpc::CallOptions options;
  options.timeout = absl::ZeroDuration();
  return options;
}

absl::StatusOr<Tensor> CopyOf(const optim::StateArray& array, const Shape& shape) {
  PSD_ASSIGN_OR_RETURN(Tensor copy, Tensor::Empty(shape, array.dtype));
  PSD_RETURN_IF_ERROR(
      CopyBytes(nullptr, copy.mutable_raw_data(), array.device, array.data, array.bytes));
  return copy;
}

}  // namespace

LocalOptimizer::LocalOptimizer(Worker& worker, RRef reference,
                               std::shared_ptr<optim::OwnerOptimizer> optimizer)
    : runtime_(RuntimeOf(worker)),
      reference_(std::move(reference)),
      optimizer_(std::move(optimizer)) {}

absl::StatusOr<std::unique_ptr<LocalOptimizer>> LocalOptimizer::Create(
    Worker& worker, std::vector<optim::ParameterGroup> groups,
    const optim::OptimizerSettings& settings) {
  worker::Runtime& runtime = RuntimeOf(worker);
  change::CreateOptimizer creation;
  creation.groups = std::move(groups);
  creation.settings = settings;
  creation.life.id = runtime.ids().Next();
  creation.life.owners = {{runtime.name(), runtime.incarnation()}};
  PSD_ASSIGN_OR_RETURN(store::EntryPtr entry,
                       runtime.changes().Apply(std::move(creation), nullptr).Wait());
  return Of(worker, runtime.rrefs().LocalRRef(std::move(entry)));
}

absl::StatusOr<std::unique_ptr<LocalOptimizer>> LocalOptimizer::Of(Worker& worker,
                                                                   const RRef& optimizer) {
  PSD_ASSIGN_OR_RETURN(const store::EntryPtr entry, optimizer.local_entry());
  std::shared_ptr<optim::OwnerOptimizer> hosted = optim::OptimizerOf(*entry);
  PSD_CHECK(hosted != nullptr, "an optimizer's reference leads to another value");
  return std::unique_ptr<LocalOptimizer>(new LocalOptimizer(worker, optimizer, std::move(hosted)));
}

absl::StatusOr<optim::StepPlan> LocalOptimizer::Plan(GlobalId context,
                                                     const absl::flat_hash_set<GlobalId>& frozen) {
  PSD_ASSIGN_OR_RETURN(const auto collecting, runtime_.autograd().Find(context));
  const optim::ParameterTable& table = optimizer_->table();
  services::CollectedGradients picked = services::PickGradients(collecting->Gradients(), table);
  std::vector<optim::ParameterGradient>& gradients = picked.gradients;
  gradients.erase(std::remove_if(gradients.begin(), gradients.end(),
                                 [&frozen](const optim::ParameterGradient& gradient) {
                                   return frozen.contains(gradient.parameter);
                                 }),
                  gradients.end());
  PSD_ASSIGN_OR_RETURN(optim::StepPlan plan,
                       table.Plan(std::move(gradients), std::move(picked.leaves)));
  PSD_RETURN_IF_ERROR(optimizer_->Check(plan));
  return plan;
}

absl::StatusOr<std::vector<std::pair<GlobalId, double>>> LocalOptimizer::SumsOfSquares(
    optim::StepPlan plan) const {
  const optim::ParameterTable& table = optimizer_->table();
  PSD_RETURN_IF_ERROR(table.Round(plan));
  PSD_ASSIGN_OR_RETURN(const std::vector<double> squares, optim::SumsOfSquares(plan));
  std::vector<std::pair<GlobalId, double>> sums;
  for (size_t i = 0; i < plan.indices.size(); ++i)
    sums.emplace_back(table[plan.indices[i]].id(), squares[i]);
  return sums;
}

absl::StatusOr<optim::StepResult> LocalOptimizer::Step(optim::StepPlan plan,
                                                       const optim::StepTerms& terms) {
  optim::StepRequest request;
  request.step_id = runtime_.ids().Next();
  request.ended_before = request.step_id.counter;  // steps are made one after the other
  request.ticket = optimizer_->NewTicket();
  request.member.session = {runtime_.incarnation(), 0};
  request.member.name = runtime_.name();
  request.plan = std::move(plan);
  request.terms = terms;
  const Promise<optim::StepResult> applied;
  request.done = [applied](absl::StatusOr<optim::StepResult> result) {
    applied.Set(std::move(result));
  };
  optimizer_->Step(std::move(request));
  return applied.future().Wait();
}

absl::StatusOr<OptimizerSpec> LocalOptimizer::Options(size_t group) const {
  PSD_ASSIGN_OR_RETURN(optim::GroupOptions options, optimizer_->options(group));
  return std::move(options.spec);
}

absl::StatusOr<optim::GroupFunctions> LocalOptimizer::FunctionsWith(
    absl::Span<const std::map<std::string, double>> options, const EntryGroups& parameters) const {
  PSD_ASSIGN_OR_RETURN(optim::GroupFunctions functions, optimizer_->FunctionsWith(options));
  for (size_t g = 0; g < parameters.size(); ++g) {
    for (const store::EntryPtr& entry : parameters[g]) {
      if (!entry->parameter->requires_grad()) continue;
      PSD_RETURN_IF_ERROR(
          Annotate(optim::CheckDenseParameter(*entry, *functions[g]), entry->Label()));
    }
  }
  return functions;
}

absl::Status LocalOptimizer::SetOptions(size_t group,
                                        const std::map<std::string, double>& changes) {
  return runtime_.optimizer_service()
      .SetOptions(reference_, group, changes, /*version=*/0, /*life=*/{}, WithoutTimeout())
      .Wait()
      .status();
}

Counters LocalOptimizer::counters() const {
  const optim::OwnerOptimizer::Stats stats = optimizer_->stats();
  return {stats.steps, stats.loss_scale, stats.good_steps};
}

optim::SteppedParameter* LocalOptimizer::Find(const store::Entry& entry) const {
  const optim::ParameterTable& table = optimizer_->table();
  const std::optional<size_t> index = table.Find(entry.id);
  return index.has_value() ? &table[*index] : nullptr;
}

absl::StatusOr<std::vector<ParameterSnapshot>> LocalOptimizer::Read(
    const std::vector<store::EntryPtr>& entries) {
  std::vector<GlobalId> ids = {optimizer_->claim_id()};
  for (const store::EntryPtr& entry : entries) ids.push_back(entry->id);
  const Claims claims(runtime_.store(), std::move(ids));
  std::vector<ParameterSnapshot> states;
  for (const store::EntryPtr& entry : entries) {
    ParameterSnapshot& state = states.emplace_back();
    state.name = entry->name;
    state.shape = entry->parameter->shape();
    state.dtype = entry->parameter->dtype();
    state.requires_grad = entry->parameter->requires_grad();
    const optim::SteppedParameter* stepped = Find(*entry);
    if (stepped == nullptr) continue;
    state.steps = static_cast<uint64_t>(stepped->steps());
    for (const optim::StateArray& array : stepped->state()) {
      PSD_ASSIGN_OR_RETURN(state.state[array.name], CopyOf(array, state.shape));
    }
  }
  return states;
}

absl::StatusOr<std::vector<change::LoadValue>> LocalOptimizer::PrepareWrite(
    const std::vector<store::EntryPtr>& entries,
    const std::vector<const ParameterSnapshot*>& saved) const {
  std::vector<change::LoadValue> loads;
  for (size_t i = 0; i < entries.size(); ++i) {
    optim::SteppedParameter* stepped = Find(*entries[i]);
    if (stepped == nullptr) continue;
    change::LoadValue& load = loads.emplace_back();
    load.entry = entries[i];
    change::LoadValue::State& state = load.states.emplace_back();
    state.optimizer = optimizer_;
    state.stepped = stepped;
    state.steps = static_cast<int64_t>(saved[i]->steps);
    for (const optim::StateArray& array : stepped->state()) {
      PSD_ASSIGN_OR_RETURN(state.arrays.emplace_back(),
                           saved[i]->state.at(array.name).Contiguous());
    }
  }
  return loads;
}

absl::Status LocalOptimizer::Write(const std::vector<change::LoadValue>& loads,
                                   const Counters& counters) {
  std::vector<GlobalId> ids = optimizer_->table().ids();
  ids.push_back(optimizer_->claim_id());
  const Claims claims(runtime_.store(), std::move(ids));
  PSD_RETURN_IF_ERROR(optim::CheckLife({}, optimizer_->life()));
  for (const change::LoadValue& load : loads) PSD_RETURN_IF_ERROR(runtime_.changes().Apply(load));
  return optimizer_->FinishOwnLoad({counters.steps, counters.loss_scale, counters.good_steps});
}

}  // namespace psd::zero
