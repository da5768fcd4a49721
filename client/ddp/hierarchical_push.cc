#include "client/ddp/hierarchical_push.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "client/collectives/digest.h"
#include "client/collectives/pause_before.h"
#include "client/context_of.h"
#include "client/ddp/buffer_groups.h"
#include "client/runtime_of.h"
#include "client/steps_for_others.h"
#include "core/base/clock.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/dist_autograd/context.h"
#include "core/optim/steps/round_ledger.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/collectives/collective_call.h"
#include "core/services/gradients/gradient_service.h"
#include "core/tensor/ops/cast.h"

namespace psd {
namespace {

using dist_autograd::LeafGradient;

// The longest way of a step in exchanges, each of which may take the timeout: the gradients, the
// wait for seats, the turn, the measurement and the step of the last try, and the question for the
// loss scale after a failure.
constexpr int kMostExchanges = 6;

absl::Status CheckTimeout(absl::Duration timeout) {
  // The product is infinite for the longest finite timeouts, too.
  if (timeout > absl::ZeroDuration() && kMostExchanges * timeout < absl::InfiniteDuration())
    return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat(
                        "the timeout of a hierarchical step is ", absl::FormatDuration(timeout))),
                    "give a positive, finite one, because the other ranks wait for the outcome");
}

absl::Status CheckParameters(const std::vector<RRef>& parameters) {
  if (parameters.empty()) {
    return WithRemedy(absl::InvalidArgumentError("a hierarchical push without any parameter"),
                      "give the optimizer's dense parameters");
  }
  absl::flat_hash_set<GlobalId> seen;
  for (const RRef& parameter : parameters) {
    if (!parameter.valid()) {
      return WithRemedy(absl::InvalidArgumentError("a hierarchical push of an RRef to nothing"),
                        "look the parameter up");
    }
    if (parameter.is_owner()) {
      return WithRemedy(
          absl::InvalidArgumentError(absl::StrCat("a hierarchical push of ", parameter.ToString(),
                                                  ", which this trainer owns")),
          "give parameters of owners, and average the gradients of replicas by "
          "BufferedDataParallel");
    }
    if (seen.insert(parameter.value_id()).second) continue;
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("a hierarchical push of ", parameter.ToString(),
                                                ", which is given twice")),
        "give every parameter once");
  }
  return absl::OkStatus();
}

// Gradients of 16 bits are computed and added up in f32.
DType WideDType(DType dtype) {
  return IsFloating(dtype) && ItemSize(dtype) == 2 ? DType::kF32 : dtype;
}

absl::StatusOr<Tensor> Converted(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype) return tensor;
  return ops::Cast(tensor, dtype);
}

std::string OptionsDigest(const StepOptions& options) {
  Digest digest;
  digest.Add({options.clip_value, options.clip_norm, options.loss_scale,
              options.mean_of_contexts ? 1.0 : 0.0, options.check_first ? 1.0 : 0.0});
  return digest.Short();
}

CollectiveOptions Labelled(const CollectiveOptions& options, const std::string& what) {
  CollectiveOptions labelled = options;
  labelled.label = absl::StrCat(options.label, options.label.empty() ? "" : ", ", what);
  return labelled;
}

// The error of a rank that does not know whether the pusher has pushed.
absl::Status MayBeApplied(const absl::Status& why) {
  ErrorDetail detail = GetDetail(why).value_or(ErrorDetail{});
  detail.fate_unknown = true;
  return WithRemedy(
      WithDetail(Annotate(why,
                          "the step may have been applied, as the pusher's word on it is "
                          "missing"),
                 detail),
      "build the group again and compute new gradients");
}

// The error of a pusher that cannot tell all ranks about its step, whose status is `step`.
absl::Status NotKnownToAll(const absl::Status& why, const absl::Status& step) {
  ErrorDetail detail = GetDetail(why).value_or(ErrorDetail{});
  const auto of_step = GetDetail(step);
  // The ranks that were not told must assume that the step may have been applied.
  detail.fate_unknown |= step.ok() || (of_step.has_value() && of_step->fate_unknown);
  return WithDetail(
      Annotate(why, step.ok() ? std::string("the step was applied, and not all ranks know")
                              : absl::StrCat("the step failed (", step.message(),
                                             "), and not all ranks know")),
      detail);
}

// Whether the owners refused a step only because other trainers have too many seats.
bool LacksSeats(const absl::Status& status) {
  const auto detail = GetDetail(status);
  return absl::IsResourceExhausted(status) && detail.has_value() &&
         detail->object == optim::kSeats && !detail->fate_unknown;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HierarchicalPush>> HierarchicalPush::Create(
    Worker& worker, std::shared_ptr<Group> group, DistributedOptimizer& optimizer,
    const std::vector<RRef>& parameters, const HierarchicalOptions& options) {
  PSD_RETURN_IF_ERROR(CheckTimeout(options.step_timeout));
  PSD_RETURN_IF_ERROR(CheckParameters(parameters));
  const absl::StatusOr<std::vector<PulledParameter>> pulled = worker.Pull(parameters);
  if (absl::IsInvalidArgument(pulled.status())) {
    return WithRemedy(pulled.status(),
                      "push dense parameters only; tables need an optimizer of their own, which "
                      "every trainer steps itself");
  }
  PSD_RETURN_IF_ERROR(pulled.status());
  std::vector<DType> dtypes;
  std::vector<ReplicatedParameter> forms;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& elements = (*pulled)[i].elements;
    dtypes.push_back(elements.dtype());
    ReplicatedParameter& form = forms.emplace_back();
    form.shape = elements.shape();
    form.dtype = WideDType(elements.dtype());
    form.name = parameters[i].value_id().ToString();
  }
  PSD_ASSIGN_OR_RETURN(BufferedAllReduce sums,
                       BufferedAllReduce::Create(group, std::move(forms), options.buffers));
  std::unique_ptr<HierarchicalPush> created(
      new HierarchicalPush(worker, std::move(group), optimizer, parameters, std::move(dtypes),
                           options, std::move(sums)));
  // A call with a label that is too long would be refused here while the other ranks wait for it.
  const size_t label = created->FirstCall({}).label.size();
  if (label > services::kMaxLabelBytes) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("the labels of a hierarchical step have ", label,
                                                " bytes; at most ", services::kMaxLabelBytes)),
        "give a shorter label");
  }
  PSD_RETURN_IF_ERROR(created->Begin());
  return created;
}

absl::Status HierarchicalPush::Begin() {
  if (!IsPusher()) StepsForOthers::GiveSeats(optimizer_);
  if (!StepsForOthers::ScalesLosses(optimizer_)) return absl::OkStatus();
  PushOutcome present;
  if (IsPusher()) {
    present.status = StepsForOthers::RefreshLossScale(optimizer_, options_.step_timeout);
    present.loss_scale = optimizer_.LossScale();
  }
  PSD_ASSIGN_OR_RETURN(present, Share(present, "loss scale", options_.step_timeout));
  loss_scale_ = present.loss_scale;
  return present.status;
}

CollectiveOptions HierarchicalPush::FirstCall(const StepOptions& options) const {
  return Labelled(options_.call, absl::StrCat("hierarchical step ", OptionsDigest(options), ", ",
                                              sums_.LabelOf(0)));
}

absl::StatusOr<std::vector<Variable>> HierarchicalPush::Variables(const Context& context) {
  PSD_RETURN_IF_ERROR(StateOf(context).status());
  PSD_ASSIGN_OR_RETURN(const std::vector<PulledParameter> pulled, worker_.Pull(parameters_));
  std::vector<Variable> variables;
  for (size_t i = 0; i < pulled.size(); ++i) {
    PSD_ASSIGN_OR_RETURN(Tensor elements, Converted(pulled[i].elements, WideDType(dtypes_[i])));
    variables.push_back(
        Variable::Leaf(std::move(elements), parameters_[i].value_id(), pulled[i].version));
    PSD_RETURN_IF_ERROR(variables.back().status());
  }
  return variables;
}

absl::StatusOr<HierarchicalPush::Collected> HierarchicalPush::Collect(const Context& context,
                                                                      absl::Duration timeout) {
  PSD_RETURN_IF_ERROR(CheckTimeout(timeout));
  Collected collected;
  PSD_ASSIGN_OR_RETURN(collected.context, StateOf(context));
  collected.leaves.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i)
    collected.leaves[i].key = parameters_[i].value_id();
  for (const LeafGradient& leaf : collected.context->Collected(collected.leaves)) {
    if (!leaf.sparse.empty()) {
      return WithRemedy(
          absl::InvalidArgumentError(
              absl::StrCat("the gradient of ", parameters_[collected.gradients.size()].ToString(),
                           " is sparse, and a hierarchical push adds up dense ones")),
          "host it as a table (CreateOptions::rows) with an optimizer of its own, which every "
          "trainer steps itself");
    }
    collected.gradients.push_back(leaf.gradient);
    collected.versions.push_back(leaf.version);
  }
  PSD_RETURN_IF_ERROR(sums_.Check(collected.gradients));
  if (!collected.context->HandOver(collected.leaves)) {
    return WithRemedy(absl::FailedPreconditionError(
                          absl::StrCat("context ", context.id().ToString(),
                                       " was stepped before, and its gradients may be applied")),
                      "compute gradients in a new context");
  }
  return collected;
}

absl::StatusOr<HierarchicalPush::Agreed> HierarchicalPush::Agree(
    const absl::StatusOr<Collected>& own, const StepOptions& options) {
  // The code of this rank's error, then for each parameter 0 if it has no gradient, else 1 more
  // than the version.
  std::vector<int64_t> words(1 + parameters_.size());
  words[0] = static_cast<int64_t>(own.status().code());
  for (size_t i = 0; own.ok() && i < parameters_.size(); ++i) {
    if (!own->gradients[i].defined()) continue;
    const ReadVersion version = own->versions[i];
    words[1 + i] = 1 + static_cast<int64_t>(version.has_unknown() ? 0 : version.oldest());
  }
  const auto count = static_cast<int64_t>(words.size());
  const absl::StatusOr<std::vector<Tensor>> all =
      group_->AllGather(Tensor::Of<int64_t>({count}, std::move(words)), FirstCall(options));
  PSD_RETURN_IF_ERROR(own.status());
  PSD_RETURN_IF_ERROR(all.status());
  Agreed agreed;
  agreed.present.resize(parameters_.size());
  agreed.versions.resize(parameters_.size());
  for (size_t rank = 0; rank < all->size(); ++rank) {
    const int64_t* told = (*all)[rank].data<int64_t>();
    if (told[0] != 0) {
      const std::string& name = group_->members()[rank];
      ErrorDetail detail;
      detail.worker = name;
      return WithRemedy(
          WithDetail(absl::FailedPreconditionError(absl::StrCat(
                         "nothing was pushed, because rank ", rank, " (", name, ") cannot step: ",
                         absl::StatusCodeToString(static_cast<absl::StatusCode>(told[0])))),
                     detail),
          "see the error of that rank's Step for the cause; the group can go on");
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (told[1 + i] == 0) continue;
      const ReadVersion version(static_cast<uint64_t>(told[1 + i]) - 1);
      if (agreed.present[i]) {
        agreed.versions[i].Add(version);
      } else {
        agreed.versions[i] = version;
      }
      agreed.present[i] = true;
    }
  }
  return agreed;
}

absl::Status HierarchicalPush::PushGradients(const Context& context, const Agreed& agreed,
                                             const std::vector<Tensor>& sums,
                                             absl::Duration timeout) {
  PSD_ASSIGN_OR_RETURN(const auto state, StateOf(context));
  rpc::CallOptions call;
  call.timeout = timeout;
  services::GradientService& gradients = RuntimeOf(worker_).gradients();
  std::vector<Future<Unit>> pushed;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!agreed.present[i]) continue;
    PSD_ASSIGN_OR_RETURN(const Tensor sum, Converted(sums[i], dtypes_[i]));
    const ReadVersion version = agreed.versions[i];
    pushed.push_back(gradients.Push(state, parameters_[i],
                                    version.has_unknown() ? 0 : version.oldest(), sum, call));
  }
  absl::Status status;
  for (const Future<Unit>& each : pushed) status.Update(each.Wait().status());
  return status;
}

StepOutcome HierarchicalPush::StepForAll(const Context& context, const StepOptions& options) {
  const absl::Time until = Clock::Steady().Now() + *options.timeout;
  StepOutcome outcome = optimizer_.StepDetailed(context, options);
  // Seats of a trainer that died are left when the owners have noticed its end.
  while (LacksSeats(outcome.status()) && PauseBefore(until, worker_))
    outcome = optimizer_.RetryFailed(outcome);
  return outcome;
}

PushOutcome HierarchicalPush::Push(const Agreed& agreed, const std::vector<Tensor>& sums,
                                   const StepOptions& options) {
  PushOutcome outcome;
  outcome.loss_scale = loss_scale_;
  // A context of its own, without the gradients that the user's has collected on owners.
  absl::StatusOr<Context> context = worker_.NewContext();
  outcome.status = context.status();
  if (outcome.status.ok()) outcome.status = PushGradients(*context, agreed, sums, *options.timeout);
  if (!outcome.status.ok()) return outcome;
  outcome.status = StepForAll(*context, options).status();
  outcome.loss_scale = optimizer_.LossScale();
  return outcome;
}

absl::StatusOr<PushOutcome> HierarchicalPush::Share(const PushOutcome& own, const std::string& what,
                                                    absl::Duration timeout) {
  CollectiveOptions call = Labelled(options_.call, what);
  call.timeout = kMostExchanges * timeout;
  PSD_ASSIGN_OR_RETURN(
      const Tensor told,
      group_->Broadcast(IsPusher() ? EncodeOutcome(own) : Tensor(), /*root=*/0, call));
  return DecodeOutcome(told);
}

absl::Status HierarchicalPush::Step(const Context& context, const StepOptions& options) {
  StepOptions for_all = options;
  for_all.seats = static_cast<uint32_t>(group_->size());
  for_all.timeout = options.timeout.value_or(options_.step_timeout);
  const absl::StatusOr<Collected> own = Collect(context, *for_all.timeout);
  const absl::StatusOr<Agreed> agreed = Agree(own, options);
  if (!agreed.ok()) {
    if (own.ok()) own->context->TakeBack(own->leaves);  // nobody pushes
    return agreed.status();
  }
  const absl::StatusOr<std::vector<Tensor>> sums = sums_.Sum(own->gradients, options_.call);
  if (!sums.ok()) {
    const absl::Status failed = group_->Fail(sums.status());  // the other ranks wait for this one
    return IsPusher() ? failed : MayBeApplied(failed);
  }
  PushOutcome outcome;
  if (IsPusher()) outcome = Push(*agreed, *sums, for_all);
  const absl::StatusOr<PushOutcome> shared =
      Share(outcome, "outcome of the step", *for_all.timeout);
  if (shared.ok()) {
    loss_scale_ = shared->loss_scale;
    return shared->status;
  }
  if (!IsPusher()) return MayBeApplied(shared.status());
  return NotKnownToAll(shared.status(), outcome.status);
}

absl::Status HierarchicalPush::Iterate(const Context& context, bool /*has_input*/) {
  return Step(context, iterate_options_ == nullptr ? StepOptions() : iterate_options_());
}

}  // namespace psd
