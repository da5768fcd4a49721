// Creating a ZeroRedundancyOptimizer, and its steps.
#include "client/zero/zero_redundancy_optimizer.h"

#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/collectives/digest.h"
#include "client/context_of.h"
#include "client/ddp/buffer_groups.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/runtime_of.h"
#include "client/zero/zero_impl.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/services/collectives/collective_call.h"
#include "core/store/parameter.h"

namespace psd {

namespace {

// Labels of the optimizer's calls have up to 80 bytes of its own beside those of the user.
constexpr size_t kMostLabelBytes = services::kMaxLabelBytes - 80;

}  // namespace

// ---- groups

absl::StatusOr<zero::ShardedGroup> ZeroRedundancyOptimizer::Impl::Complete(
    const OptimizerSpec& spec, const ZeroGroup& group) const {
  zero::ShardedGroup complete{spec, group.parameters};
  for (const auto& [name, value] : group.options) complete.spec.options[name] = value;
  PSD_ASSIGN_OR_RETURN(const auto function,
                       RuntimeOf(replica_.worker()).optimizers().Create(complete.spec));
  complete.spec = function->spec();
  return complete;
}

// The elements travel after each step, and the state when it is consolidated.
absl::Status ZeroRedundancyOptimizer::Impl::CheckSizes(const zero::ShardedGroup& group) const {
  for (const size_t index : group.parameters) {
    const store::Entry& entry = *entries_[index];
    const Shape& shape = entry.parameter->shape();
    PSD_RETURN_IF_ERROR(services::CheckWhole(absl::StrCat(entry.Label(), ", elements"),
                                             {entry.parameter->dtype(), shape}));
    PSD_ASSIGN_OR_RETURN(const auto slots, SlotsOf(group.spec, entry.parameter->dtype()));
    for (const auto& [name, dtype] : slots) {
      PSD_RETURN_IF_ERROR(
          services::CheckWhole(absl::StrCat(entry.Label(), ", ", name), {dtype, shape}));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<zero::Shards> ZeroRedundancyOptimizer::Impl::Spread(
    const std::vector<zero::ShardedGroup>& groups) const {
  PSD_RETURN_IF_ERROR(zero::CheckGroups(groups, entries_, options_.settings,
                                        RuntimeOf(replica_.worker()).optimizers()));
  for (const zero::ShardedGroup& group : groups) {
    for (const size_t index : group.parameters) {
      if (!replica_.parameters()[index].expert) continue;
      return WithRemedy(
          absl::InvalidArgumentError(absl::StrCat(entries_[index]->Label(),
                                                  " is an expert, of which each rank has its own")),
          "leave it out, and step it by an optimizer of this rank alone");
    }
    PSD_RETURN_IF_ERROR(CheckSizes(group));
  }
  return zero::SpreadGroups(groups, entries_, group_->size(),
                            options_.balance == ZeroOptions::Balance::kState);
}

absl::StatusOr<std::unique_ptr<zero::LocalOptimizer>> ZeroRedundancyOptimizer::Impl::MakeLocal(
    const std::vector<zero::ShardedGroup>& groups, const zero::Shards& shards) const {
  return zero::LocalOptimizer::Create(
      replica_.worker(), zero::SteppedGroups(groups, entries_, &shards.parameters[group_->rank()]),
      options_.settings);
}

CollectiveOptions ZeroRedundancyOptimizer::Impl::Labelled(absl::string_view label) const {
  CollectiveOptions call = options_.call;
  call.label = absl::StrCat(call.label, call.label.empty() ? "" : ", ", label);
  return call;
}

absl::Status ZeroRedundancyOptimizer::Impl::Agree(
    absl::string_view what, const std::vector<zero::ShardedGroup>& groups) const {
  const std::string rest =
      absl::StrCat(options_.settings.ToString(), " ", static_cast<int>(options_.balance), " ",
                   absl::StrJoin(DeviceNumbers(replica_.parameters()), " "));
  return group_->Barrier(
      Labelled(absl::StrCat(what, ": ", zero::DigestOf(groups, entries_, rest))));
}

absl::Status ZeroRedundancyOptimizer::Impl::Begin(const OptimizerSpec& spec,
                                                  const std::vector<ZeroGroup>& groups) {
  if (options_.settings.mode.kind != optim::UpdateMode::Kind::kAsynchronous) {
    return WithRemedy(absl::InvalidArgumentError(absl::StrCat("a sharded optimizer in the mode ",
                                                              options_.settings.mode.ToString())),
                      "leave the mode asynchronous: the ranks step together anyway");
  }
  if (options_.call.label.size() > kMostLabelBytes) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("a label of ", options_.call.label.size(),
                                                " bytes; at most ", kMostLabelBytes)),
        "give a shorter one");
  }
  const BufferedDataParallel* averaging = options_.averaging;
  if (averaging != nullptr && (&averaging->group() != group_.get() ||
                               &averaging->replica().values() != &replica_.values())) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("a sharded optimizer in the group ", group_->name(),
                                                " with averages of another group or replica")),
        "give both the same group and handles to the same replica");
  }
  for (const RRef& value : replica_.values()) {
    PSD_ASSIGN_OR_RETURN(entries_.emplace_back(), value.local_entry());
    number_of_[entries_.back()->id] = entries_.size() - 1;
  }
  spec_ = spec;
  for (const ZeroGroup& group : groups) {
    PSD_ASSIGN_OR_RETURN(groups_.emplace_back(), Complete(spec, group));
  }
  PSD_ASSIGN_OR_RETURN(shards_, Spread(groups_));
  auto local = MakeLocal(groups_, shards_);
  if (!local.ok()) return group_->Fail(local.status());
  local_ = *std::move(local);
  return Agree("zero", groups_);
}

absl::Status ZeroRedundancyOptimizer::Impl::HandOver(zero::LocalOptimizer& next) const {
  for (size_t g = 0; g < local_->num_groups(); ++g) {
    PSD_ASSIGN_OR_RETURN(const OptimizerSpec now, local_->Options(g));
    if (now.options != groups_[g].spec.options)
      PSD_RETURN_IF_ERROR(next.SetOptions(g, now.options));
  }
  std::vector<store::EntryPtr> own;
  for (const Stateful& each : StatefulOf(group_->rank())) own.push_back(entries_[each.parameter]);
  PSD_ASSIGN_OR_RETURN(const std::vector<ParameterSnapshot> states, ReadOwn());
  std::vector<const ParameterSnapshot*> saved;
  for (const ParameterSnapshot& state : states) saved.push_back(&state);
  PSD_ASSIGN_OR_RETURN(const auto loads, next.PrepareWrite(own, saved));
  return next.Write(loads, local_->counters());
}

absl::Status ZeroRedundancyOptimizer::Impl::AddGroup(const ZeroGroup& group) {
  std::vector<zero::ShardedGroup> groups = groups_;
  PSD_ASSIGN_OR_RETURN(groups.emplace_back(), Complete(spec_, group));
  PSD_ASSIGN_OR_RETURN(zero::Shards shards, Spread(groups));
  auto next = MakeLocal(groups, shards);
  if (!next.ok()) return group_->Fail(next.status());
  if (absl::Status handed = HandOver(**next); !handed.ok()) return group_->Fail(handed);
  PSD_RETURN_IF_ERROR(Agree("zero, one more group", groups));
  groups_ = std::move(groups);
  shards_ = std::move(shards);
  local_ = *std::move(next);
  snapshot_.reset();
  return absl::OkStatus();
}

absl::Status ZeroRedundancyOptimizer::Impl::SetOptions(
    size_t group, const std::map<std::string, double>& changes) {
  PSD_RETURN_IF_ERROR(local_->Options(group).status());
  std::vector<std::map<std::string, double>> options;
  for (size_t g = 0; g < groups_.size(); ++g) {
    PSD_ASSIGN_OR_RETURN(OptimizerSpec now, local_->Options(g));
    options.push_back(std::move(now.options));
  }
  for (const auto& [name, value] : changes) options[group][name] = value;
  // A rank must not accept options that another rank refuses for a parameter of its own shard.
  PSD_RETURN_IF_ERROR(local_->FunctionsWith(options, GroupEntries()).status());
  return local_->SetOptions(group, changes);
}

zero::EntryGroups ZeroRedundancyOptimizer::Impl::GroupEntries() const {
  zero::EntryGroups entries;
  for (const zero::ShardedGroup& group : groups_) {
    std::vector<store::EntryPtr>& each = entries.emplace_back();
    for (const size_t index : group.parameters) each.push_back(entries_[index]);
  }
  return entries;
}

// ---- steps

absl::StatusOr<optim::StepWishes> ZeroRedundancyOptimizer::Impl::WishesOf(
    const ZeroStepOptions& options) const {
  optim::StepWishes wishes;
  wishes.clip_value = options.clip_value;
  wishes.clip_norm = options.clip_norm;
  wishes.loss_scale = options.loss_scale;
  wishes.detect_overflow = options_.settings.loss_scaling.enabled();
  PSD_RETURN_IF_ERROR(wishes.Check());
  if (!wishes.detect_overflow || options.loss_scale != 0) return wishes;
  return WithRemedy(
      absl::InvalidArgumentError("this optimizer scales losses, and the step does not say by how "
                                 "much"),
      "multiply the loss by LossScale() before Backward, and set loss_scale");
}

absl::StatusOr<CollectiveOptions> ZeroRedundancyOptimizer::Impl::CallOf(
    const optim::StepWishes& wishes, const std::vector<bool>& frozen) const {
  const zero::Counters counters = local_->counters();
  Digest digest;
  digest.Add({wishes.clip_value, wishes.clip_norm, wishes.loss_scale, counters.loss_scale,
              static_cast<double>(counters.good_steps)});
  std::string marks;
  for (const bool each : frozen) marks.push_back(each ? '1' : '0');
  digest.Add(marks);
  for (size_t g = 0; g < groups_.size(); ++g) {
    PSD_ASSIGN_OR_RETURN(const OptimizerSpec now, local_->Options(g));
    digest.Add(now.options);
  }
  return Labelled(absl::StrCat("zero, step ", counters.steps + 1,
                               ", options and frozen parameters ", digest.Short()));
}

absl::StatusOr<std::optional<optim::StepTerms>> ZeroRedundancyOptimizer::Impl::Decide(
    const optim::StepPlan& plan, const optim::StepWishes& wishes,
    const CollectiveOptions& call) const {
  std::vector<double> sums;
  if (wishes.NeedsMeasure()) {
    PSD_ASSIGN_OR_RETURN(const auto own, local_->SumsOfSquares(plan));
    // Each rank has the sums of its own shard, and zeros elsewhere, which change no bit of a sum.
    sums.resize(entries_.size());
    for (const auto& [parameter, sum] : own) sums[number_of_.at(parameter)] = sum;
    const Shape shape = {static_cast<int64_t>(sums.size())};
    PSD_ASSIGN_OR_RETURN(const Tensor all, group_->AllReduce(Tensor::Of(shape, std::move(sums)),
                                                             Reduction::kSum, call));
    sums.assign(all.data<double>(), all.data<double>() + all.NumElements());
  }
  optim::StepDecision decision = optim::DecideStep(wishes, sums);
  if (!wishes.detect_overflow && !std::isfinite(decision.gradient_norm)) return std::nullopt;
  if (!options_.settings.schedule.IsConstant())
    decision.terms.schedule_step = local_->counters().steps;
  return decision.terms;
}

absl::Status ZeroRedundancyOptimizer::Impl::Share(const std::vector<bool>& frozen,
                                                  const CollectiveOptions& call) const {
  const std::vector<ReplicatedParameter>& parameters = replica_.parameters();
  std::vector<ParcelSource> sources;
  std::vector<std::vector<size_t>> indices;  // of the tensors of each source
  for (int rank = 0; rank < group_->size(); ++rank) {
    ParcelSource source;
    source.root = rank;
    std::vector<size_t>& of_rank = indices.emplace_back();
    for (const std::vector<size_t>& group : shards_.parameters[rank]) {
      for (const size_t index : group) {
        if (frozen[index]) continue;
        of_rank.push_back(index);
        source.forms.push_back({parameters[index].dtype, parameters[index].shape});
        source.devices.push_back(parameters[index].device);
      }
    }
    if (rank == group_->rank()) {
      PSD_ASSIGN_OR_RETURN(source.tensors, replica_.Elements(of_rank));
    }
    sources.push_back(std::move(source));
  }
  PSD_ASSIGN_OR_RETURN(std::vector<std::vector<Tensor>> all,
                       BroadcastParcels(*group_, sources, call));
  std::vector<std::pair<size_t, Tensor>> received;
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == group_->rank()) continue;
    for (size_t i = 0; i < indices[rank].size(); ++i)
      received.emplace_back(indices[rank][i], std::move(all[rank][i]));
  }
  PSD_RETURN_IF_ERROR(Replica(replica_).Assign(std::move(received)));
  // After this, no rank can fail to take the parameters that the others have.
  return group_->Barrier(call);
}

absl::Status ZeroRedundancyOptimizer::Impl::Backward(Context& context, const Variable& loss) const {
  return options_.averaging == nullptr ? context.Backward({loss})
                                       : options_.averaging->Backward(context, {loss});
}

absl::Status ZeroRedundancyOptimizer::Impl::Step(const Context& context,
                                                 const ZeroStepOptions& options) {
  PSD_RETURN_IF_ERROR(StateOf(context).status());
  PSD_ASSIGN_OR_RETURN(const optim::StepWishes wishes, WishesOf(options));
  PSD_RETURN_IF_ERROR(group_->status());
  absl::StatusOr<bool> has_norm = StepTogether(context.id(), wishes);
  if (!has_norm.ok()) return group_->Fail(has_norm.status());
  if (*has_norm) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the gradients have no norm to clip by: there is a NaN, an infinity or an overflow among "
      "those of the ranks' shards; nothing was applied");
}

absl::StatusOr<bool> ZeroRedundancyOptimizer::Impl::StepTogether(GlobalId context,
                                                                 const optim::StepWishes& wishes) {
  // Parameters that are frozen now stay as they are on all ranks, even if they were frozen after
  // the forward pass.
  std::vector<bool> frozen;
  absl::flat_hash_set<GlobalId> frozen_ids;
  for (size_t i = 0; i < entries_.size(); ++i) {
    frozen.push_back(!replica_.parameters()[i].requires_grad);
    if (frozen[i]) frozen_ids.insert(entries_[i]->id);
  }
  PSD_ASSIGN_OR_RETURN(optim::StepPlan plan, local_->Plan(context, frozen_ids));
  PSD_ASSIGN_OR_RETURN(const CollectiveOptions call, CallOf(wishes, frozen));
  PSD_ASSIGN_OR_RETURN(const std::optional<optim::StepTerms> terms, Decide(plan, wishes, call));
  if (!terms.has_value()) return false;
  snapshot_.reset();
  PSD_RETURN_IF_ERROR(local_->Step(std::move(plan), *terms).status());
  // After the last call, no rank can fail in this step: all have skipped it, or have its results.
  PSD_RETURN_IF_ERROR(terms->overflow ? group_->Barrier(call) : Share(frozen, call));
  return true;
}

// ---- the public face

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

absl::StatusOr<std::unique_ptr<ZeroRedundancyOptimizer>> ZeroRedundancyOptimizer::Create(
    std::shared_ptr<Group> group, const Replica& replica, const OptimizerSpec& spec,
    const ZeroOptions& options) {
  ZeroGroup all;
  for (size_t i = 0; i < replica.size(); ++i) all.parameters.push_back(i);
  return Create(std::move(group), replica, spec, {all}, options);
}

absl::StatusOr<std::unique_ptr<ZeroRedundancyOptimizer>> ZeroRedundancyOptimizer::Create(
    std::shared_ptr<Group> group, const Replica& replica, const OptimizerSpec& spec,
    const std::vector<ZeroGroup>& groups, const ZeroOptions& options) {
  auto impl = std::make_unique<Impl>(std::move(group), replica, options);
  PSD_RETURN_IF_ERROR(impl->Begin(spec, groups));
  return std::unique_ptr<ZeroRedundancyOptimizer>(new ZeroRedundancyOptimizer(std::move(impl)));
}

absl::Status ZeroRedundancyOptimizer::Step(const Context& context, const ZeroStepOptions& options) {
  return impl_->Step(context, options);
}

absl::StatusOr<Tensor> ZeroRedundancyOptimizer::Step(
    const std::function<absl::StatusOr<Variable>(const Context& context)>& loss,
    const ZeroStepOptions& options) {
  PSD_ASSIGN_OR_RETURN(Context context, impl_->replica().worker().NewContext());
  PSD_ASSIGN_OR_RETURN(const Variable computed, loss(context));
  PSD_RETURN_IF_ERROR(impl_->Backward(context, computed));
  PSD_RETURN_IF_ERROR(Step(context, options));
  return computed.tensor();
}

absl::Status ZeroRedundancyOptimizer::AddGroup(const ZeroGroup& group) {
  return impl_->AddGroup(group);
}
absl::Status ZeroRedundancyOptimizer::SetOptions(size_t group,
                                                 const std::map<std::string, double>& changes) {
  return impl_->SetOptions(group, changes);
}
absl::StatusOr<OptimizerSpec> ZeroRedundancyOptimizer::Options(size_t group) const {
  return impl_->local().Options(group);
}
double ZeroRedundancyOptimizer::LossScale() const {
  const double scale = impl_->local().counters().loss_scale;
  return scale == 0 ? 1 : scale;
}
uint64_t ZeroRedundancyOptimizer::steps() const {
  return impl_->local().counters().steps;
}

absl::Status ZeroRedundancyOptimizer::Consolidate(int to) {
  return impl_->Consolidate(to);
}
absl::StatusOr<OptimizerSnapshot> ZeroRedundancyOptimizer::State() const {
  return impl_->State();
}
absl::Status ZeroRedundancyOptimizer::Load(const OptimizerSnapshot& snapshot) {
  return impl_->Load(snapshot);
}

int ZeroRedundancyOptimizer::RankOf(size_t parameter) const {
  const std::vector<int>& ranks = impl_->shards().rank_of;
  return parameter < ranks.size() ? ranks[parameter] : -1;
}
size_t ZeroRedundancyOptimizer::StateBytes() const {
  return impl_->local().state_bytes();
}

void ZeroRedundancyOptimizer::IterateWith(std::function<ZeroStepOptions()> options) {
  iterate_options_ = std::move(options);
}
Group& ZeroRedundancyOptimizer::group() const {
  return impl_->group();
}
absl::Status ZeroRedundancyOptimizer::Iterate(const Context& context, bool /*has_input*/) {
  return Step(context, iterate_options_ == nullptr ? ZeroStepOptions() : iterate_options_());
}

}  // namespace psd
