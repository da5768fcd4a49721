#include "core/optim/owner_optimizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/optim/step_log.h"

namespace psd::optim {
namespace {

using store::EntryPtr;
using store::Parameter;

// A step between its check and its end.
struct Request {
  GlobalId step_id;
  StepPlan plan;
  absl::AnyInvocable<bool()> begin_apply;
  absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done;
};

class OwnerOptimizerImpl : public OwnerOptimizer,
                           public std::enable_shared_from_this<OwnerOptimizerImpl> {
 public:
  OwnerOptimizerImpl(std::vector<std::unique_ptr<FunctionalOptimizer>> functions,
                     ParameterTable table, store::Store& store)
      : functions_(std::move(functions)),
        store_(store),
        claim_id_(store.NewId()),
        table_(std::move(table)) {
    for (size_t i = 0; i < table_.size(); ++i)
      for (const StateArray& array : table_[i].state()) state_bytes_ += array.bytes;
  }

  std::string TypeName() const override { return absl::StrCat("optimizer/", spec().type); }
  OptimizerSpec spec() const override { return functions_[0]->spec(); }
  const ParameterTable& table() const override { return table_; }
  void Step(GlobalId step_id, std::vector<ParameterGradient> gradients,
            absl::AnyInvocable<bool()> begin_apply,
            absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) override;
  absl::Status VisitState(GlobalId parameter,
                          absl::AnyInvocable<void(SteppedParameter&)> visit) override;
  Stats stats() const override PSD_EXCLUDES(mutex_);

 private:
  std::vector<GlobalId> ClaimedIds(const StepPlan& plan) const;

  // With the claim granted.
  absl::StatusOr<StepResult> Apply(Request& request) PSD_EXCLUDES(mutex_);
  void RunKernels(const StepPlan& plan, absl::Span<const Parameter::Write> writes);
  StepResult Record(const Request& request, absl::Span<const Parameter::Write> writes)
      PSD_EXCLUDES(mutex_);

  const std::vector<std::unique_ptr<FunctionalOptimizer>> functions_;  // by group
  store::Store& store_;
  const GlobalId claim_id_;  // claimed by every step: steps of one optimizer are serial
  const ParameterTable table_;
  size_t state_bytes_ = 0;

  mutable Mutex mutex_;  // leaf
  StepLog applied_ PSD_GUARDED_BY(mutex_){kRememberedSteps};
  uint64_t steps_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t max_staleness_ PSD_GUARDED_BY(mutex_) = 0;
  double staleness_sum_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t staleness_count_ PSD_GUARDED_BY(mutex_) = 0;
};

std::vector<GlobalId> OwnerOptimizerImpl::ClaimedIds(const StepPlan& plan) const {
  std::vector<GlobalId> ids;
  ids.reserve(plan.gradients.size() + 1);
  for (const ParameterGradient& each : plan.gradients) ids.push_back(each.parameter);
  ids.insert(std::lower_bound(ids.begin(), ids.end(), claim_id_), claim_id_);
  return ids;
}

void OwnerOptimizerImpl::Step(GlobalId step_id, std::vector<ParameterGradient> gradients,
                              absl::AnyInvocable<bool()> begin_apply,
                              absl::AnyInvocable<void(absl::StatusOr<StepResult>)> done) {
  absl::StatusOr<StepPlan> plan = table_.Plan(std::move(gradients));
  if (!plan.ok()) return done(plan.status());
  std::vector<GlobalId> ids = ClaimedIds(*plan);
  auto request = std::make_unique<Request>(
      Request{step_id, *std::move(plan), std::move(begin_apply), std::move(done)});
  store_.write_claims().Claim(
      std::move(ids),
      [self = shared_from_this(), request = std::move(request)](store::WriteClaims::ClaimId claim) {
        absl::StatusOr<StepResult> result = self->Apply(*request);
        request->plan.gradients.clear();
        self->store_.write_claims().Release(claim);
        request->done(std::move(result));
      });
}

absl::StatusOr<StepResult> OwnerOptimizerImpl::Apply(Request& request) {
  {
    MutexLock lock(mutex_);
    if (applied_.Contains(request.step_id)) {
      StepResult result;
      result.steps_accepted = steps_;
      result.repeated = true;
      return result;
    }
  }
  std::vector<Parameter*> versions;
  versions.reserve(request.plan.indices.size());
  for (size_t index : request.plan.indices) {
    if (Parameter* each = table_[index].versions(); each != nullptr) versions.push_back(each);
  }
  const std::vector<Parameter::Write> writes = Parameter::BeginWrite(versions);
  if (request.begin_apply != nullptr && !request.begin_apply()) {
    Parameter::AbandonWrite(versions);
    return absl::CancelledError("the step was cancelled before it changed anything");
  }
  RunKernels(request.plan, writes);
  Parameter::Publish(versions);
  return Record(request, writes);
}

// Every parameter by itself: nothing here depends on the order.
void OwnerOptimizerImpl::RunKernels(const StepPlan& plan,
                                    absl::Span<const Parameter::Write> writes) {
  auto write = writes.begin();
  for (size_t i = 0; i < plan.indices.size(); ++i) {
    SteppedParameter& parameter = table_[plan.indices[i]];
    StepArrays arrays;
    if (parameter.versions() != nullptr) {
      arrays.parameter = write->current;
      arrays.next = write->spare;
      ++write;
    }
    parameter.Apply(*functions_[parameter.group()], plan.gradients[i], arrays);
  }
}

StepResult OwnerOptimizerImpl::Record(const Request& request,
                                      absl::Span<const Parameter::Write> writes) {
  StepResult result;
  result.parameters_stepped = static_cast<int>(request.plan.indices.size());
  uint64_t sum = 0, count = 0;
  auto write = writes.begin();
  for (size_t i = 0; i < request.plan.indices.size(); ++i) {
    if (table_[request.plan.indices[i]].versions() == nullptr) continue;
    const uint64_t current = (write++)->version;
    const uint64_t read = request.plan.gradients[i].version;
    if (read == 0 || read > current) continue;  // unknown, or no version of ours
    result.max_staleness = std::max(result.max_staleness, current - read);
    sum += current - read;
    ++count;
  }
  MutexLock lock(mutex_);
  applied_.Add(request.step_id);
  result.steps_accepted = ++steps_;
  max_staleness_ = std::max(max_staleness_, result.max_staleness);
  staleness_sum_ += static_cast<double>(sum);
  staleness_count_ += count;
  return result;
}

absl::Status OwnerOptimizerImpl::VisitState(GlobalId parameter,
                                            absl::AnyInvocable<void(SteppedParameter&)> visit) {
  const std::optional<size_t> index = table_.Find(parameter);
  if (!index.has_value()) {
    return absl::NotFoundError(absl::StrCat("value ", parameter.ToString(), " is none of the ",
                                            table_.size(), " parameters of this ", spec().type,
                                            " optimizer"));
  }
  store_.write_claims().Claim({std::min(parameter, claim_id_), std::max(parameter, claim_id_)},
                              [self = shared_from_this(), index = *index, visit = std::move(visit)](
                                  store::WriteClaims::ClaimId claim) mutable {
                                visit(self->table_[index]);
                                self->store_.write_claims().Release(claim);
                              });
  return absl::OkStatus();
}

OwnerOptimizer::Stats OwnerOptimizerImpl::stats() const {
  Stats stats;
  stats.state_bytes = state_bytes_;
  MutexLock lock(mutex_);
  stats.steps = steps_;
  stats.max_staleness = max_staleness_;
  if (staleness_count_ > 0)
    stats.mean_staleness = staleness_sum_ / static_cast<double>(staleness_count_);
  return stats;
}

}  // namespace

absl::StatusOr<std::shared_ptr<OwnerOptimizer>> OwnerOptimizer::Create(
    std::vector<ParameterGroup> groups, store::Store& store) {
  PSD_CHECK(!groups.empty(), "an optimizer has at least one group");
  std::vector<std::unique_ptr<FunctionalOptimizer>> functions;
  std::vector<std::unique_ptr<SteppedParameter>> parameters;
  absl::flat_hash_set<GlobalId> seen;
  for (size_t group = 0; group < groups.size(); ++group) {
    const FunctionalOptimizer& function = *groups[group].function;
    const std::string& type = function.spec().type;
    for (EntryPtr& entry : groups[group].parameters) {
      const std::string label = entry->Label();
      if (!seen.insert(entry->id).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(type, " for ", label, ": it is among the parameters twice; name it once"));
      }
      auto parameter = NewDenseParameter(std::move(entry), group, function, store.memory());
      if (!parameter.ok()) return Annotate(parameter.status(), absl::StrCat(type, " for ", label));
      parameters.push_back(*std::move(parameter));
    }
    functions.push_back(std::move(groups[group].function));
  }
  return std::shared_ptr<OwnerOptimizer>(std::make_shared<OwnerOptimizerImpl>(
      std::move(functions), ParameterTable(std::move(parameters)), store));
}

}  // namespace psd::optim
