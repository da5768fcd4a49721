// The state of a ZeroRedundancyOptimizer: gathered on one rank, and loaded.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/collectives/parcels.h"
#include "client/collectives/time_left.h"
#include "client/runtime_of.h"
#include "client/zero/load_into.h"
#include "client/zero/zero_impl.h"
#include "core/base/clock.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/store/parameter.h"

namespace psd {
namespace {

// Returns a copy that shares no tensor with `snapshot`.
absl::StatusOr<OptimizerSnapshot> CopyOf(const OptimizerSnapshot& snapshot) {
  OptimizerSnapshot copy = snapshot;
  for (GroupSnapshot& group : copy.groups) {
    for (ParameterSnapshot& parameter : group.parameters) {
      for (auto& [name, array] : parameter.state) {
        PSD_ASSIGN_OR_RETURN(array, array.Clone());
      }
    }
  }
  return copy;
}

}  // namespace

std::vector<ZeroRedundancyOptimizer::Impl::Stateful> ZeroRedundancyOptimizer::Impl::StatefulOf(
    int rank) const {
  std::vector<Stateful> found;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const size_t index : shards_.parameters[rank][g])
      if (entries_[index]->parameter->requires_grad()) found.push_back({g, index});
  }
  return found;
}

absl::StatusOr<std::map<std::string, DType>> ZeroRedundancyOptimizer::Impl::SlotsOf(
    const OptimizerSpec& spec, DType dtype) const {
  PSD_ASSIGN_OR_RETURN(const auto function, RuntimeOf(replica_.worker()).optimizers().Create(spec));
  std::map<std::string, DType> slots;
  for (const optim::StateSlot& slot : function->Slots(dtype)) slots[slot.name] = slot.dtype;
  return slots;
}

CollectiveOptions ZeroRedundancyOptimizer::Impl::StateOfRank(int rank,
                                                             absl::Duration timeout) const {
  CollectiveOptions call = Labelled(absl::StrCat("zero, state of rank ", rank));
  call.timeout = timeout;
  return call;
}

absl::StatusOr<std::vector<ParameterSnapshot>> ZeroRedundancyOptimizer::Impl::ReadOwn() const {
  std::vector<store::EntryPtr> own;
  for (const Stateful& each : StatefulOf(group_->rank())) own.push_back(entries_[each.parameter]);
  return local_->Read(own);
}

// The steps of all parameters come first, then their arrays.
absl::Status ZeroRedundancyOptimizer::Impl::SendState(int to, absl::Time until) const {
  PSD_ASSIGN_OR_RETURN(const std::vector<ParameterSnapshot> own, ReadOwn());
  std::vector<int64_t> steps;
  std::vector<Tensor> arrays;
  for (const ParameterSnapshot& each : own) {
    steps.push_back(static_cast<int64_t>(each.steps));
    for (const auto& [name, array] : each.state) arrays.push_back(array);
  }
  const auto send = [&](const Tensor& message) {
    return group_->Send(message, to, StateOfRank(group_->rank(), TimeLeft(until)));
  };
  const Shape count = {static_cast<int64_t>(steps.size())};
  PSD_RETURN_IF_ERROR(send(Tensor::Of(count, std::move(steps))));
  for (const Parcel& parcel : PlanParcels(FormsOf(arrays))) {
    PSD_ASSIGN_OR_RETURN(const Tensor message, Pack(parcel, arrays));
    PSD_RETURN_IF_ERROR(send(message));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<ParameterSnapshot>> ZeroRedundancyOptimizer::Impl::ReceiveState(
    int from, absl::Time until) const {
  const std::vector<Stateful> stateful = StatefulOf(from);
  const auto receive = [&] { return group_->Receive(from, StateOfRank(from, TimeLeft(until))); };
  PSD_ASSIGN_OR_RETURN(const Tensor steps, receive());
  if (steps.dtype() != DType::kI64 ||
      steps.NumElements() != static_cast<int64_t>(stateful.size())) {
    return absl::InternalError(absl::StrCat("rank ", from, " counts steps as ", steps.ToString(),
                                            ", and has ", stateful.size(), " parameters"));
  }
  std::vector<TensorForm> forms;
  for (const Stateful& each : stateful) {
    const store::Parameter& parameter = *entries_[each.parameter]->parameter;
    PSD_ASSIGN_OR_RETURN(const auto slots, SlotsOf(groups_[each.group].spec, parameter.dtype()));
    for (const auto& [name, dtype] : slots) forms.push_back({dtype, parameter.shape()});
  }
  PSD_ASSIGN_OR_RETURN(std::vector<Tensor> arrays, WithoutElements(forms));
  for (const Parcel& parcel : PlanParcels(forms)) {
    PSD_ASSIGN_OR_RETURN(const Tensor message, receive());
    PSD_RETURN_IF_ERROR(Unpack(parcel, forms, message, arrays));
  }
  std::vector<ParameterSnapshot> received;
  auto next = arrays.begin();
  for (size_t i = 0; i < stateful.size(); ++i) {
    ParameterSnapshot& each = received.emplace_back();
    each.steps = static_cast<uint64_t>(steps.data<int64_t>()[i]);
    PSD_ASSIGN_OR_RETURN(const auto slots,
                         SlotsOf(groups_[stateful[i].group].spec,
                                 entries_[stateful[i].parameter]->parameter->dtype()));
    for (const auto& [name, dtype] : slots) each.state[name] = std::move(*next++);
  }
  return received;
}

absl::StatusOr<OptimizerSnapshot> ZeroRedundancyOptimizer::Impl::Assemble(
    StatesOfRanks states) const {
  OptimizerSnapshot snapshot;
  snapshot.type = local_->type();
  const zero::Counters counters = local_->counters();
  snapshot.steps = counters.steps;
  snapshot.loss_scale = counters.loss_scale;
  snapshot.good_steps = counters.good_steps;
  std::map<size_t, ParameterSnapshot*> places;  // by the parameter's number in the replica
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupSnapshot& group = snapshot.groups.emplace_back();
    PSD_ASSIGN_OR_RETURN(OptimizerSpec spec, local_->Options(g));
    group.options = std::move(spec.options);
    group.parameters.resize(groups_[g].parameters.size());
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const store::Entry& entry = *entries_[groups_[g].parameters[i]];
      ParameterSnapshot& each = group.parameters[i];
      each.name = entry.name;
      each.shape = entry.parameter->shape();
      each.dtype = entry.parameter->dtype();
      each.requires_grad = entry.parameter->requires_grad();
      places[groups_[g].parameters[i]] = &each;
    }
  }
  for (int rank = 0; rank < group_->size(); ++rank) {
    const std::vector<Stateful> stateful = StatefulOf(rank);
    for (size_t i = 0; i < stateful.size(); ++i) {
      ParameterSnapshot& place = *places.at(stateful[i].parameter);
      place.steps = states[rank][i].steps;
      place.state = std::move(states[rank][i].state);
    }
  }
  return snapshot;
}

absl::Status ZeroRedundancyOptimizer::Impl::Move(int from, int to, absl::Time until,
                                                 std::vector<ParameterSnapshot>& state) const {
  if (group_->rank() == to) {
    PSD_ASSIGN_OR_RETURN(state, from == to ? ReadOwn() : ReceiveState(from, until));
    return absl::OkStatus();
  }
  return group_->rank() == from ? SendState(to, until) : absl::OkStatus();
}

absl::Status ZeroRedundancyOptimizer::Impl::Consolidate(int to) {
  if (to < 0 || to >= group_->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("consolidating to rank ", to, " of a group of ", group_->size()));
  }
  // This call fails if the ranks name different targets, or if one makes another call.
  PSD_RETURN_IF_ERROR(group_->Barrier(Labelled(absl::StrCat("zero, state to rank ", to))));
  snapshot_.reset();
  consolidated_to_ = -1;
  StatesOfRanks states(static_cast<size_t>(group_->size()));
  const absl::Duration timeout =
      options_.call.timeout > absl::ZeroDuration() ? options_.call.timeout : group_->timeout();
  for (int from = 0; from < group_->size(); ++from) {
    const absl::Time until = Clock::Steady().Now() + timeout;
    if (absl::Status moved = Move(from, to, until, states[from]); !moved.ok())
      return group_->Fail(moved);
    // The barrier gives each rank's state a deadline of its own. A rank that has sent its state
    // learns here that another rank has died. The barrier ends one timeout after the move on all
    // ranks, because only the two ranks that move the state can tell which of them is late.
    PSD_RETURN_IF_ERROR(group_->Barrier(StateOfRank(from, TimeLeft(until + timeout))));
  }
  if (to == group_->rank()) {
    PSD_ASSIGN_OR_RETURN(snapshot_, Assemble(std::move(states)));
  }
  consolidated_to_ = to;
  return absl::OkStatus();
}

absl::StatusOr<OptimizerSnapshot> ZeroRedundancyOptimizer::Impl::State() const {
  if (snapshot_.has_value()) return CopyOf(*snapshot_);
  const int rank = group_->rank();
  return WithRemedy(
      absl::FailedPreconditionError(
          consolidated_to_ == rank ? "the optimizer has changed since its state was consolidated"
          : consolidated_to_ >= 0  ? absl::StrCat("the state was consolidated to rank ",
                                                  consolidated_to_, ", not ", rank)
                                   : "the state was not consolidated"),
      absl::StrCat("call Consolidate(", rank, ") on all ranks first"));
}

absl::Status ZeroRedundancyOptimizer::Impl::Load(const OptimizerSnapshot& snapshot) {
  PSD_RETURN_IF_ERROR(zero::LoadInto(*local_, GroupEntries(), snapshot));
  snapshot_.reset();
  return absl::OkStatus();
}

}  // namespace psd
