#include "client/ddp/replica.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/collectives/digest.h"
#include "client/collectives/parcels.h"
#include "client/context_of.h"
#include "client/runtime_of.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/change/change.h"
#include "core/change/changes.h"
#include "core/dist_autograd/leaf_gradients.h"
#include "core/services/collectives/collective_call.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/sparse_tensor.h"

namespace psd {

using dist_autograd::ContextPtr;
using dist_autograd::LeafGradient;

struct Replica::State {
  explicit State(Worker& of) : worker(of) {}
  ~State() {
    worker::Runtime& runtime = RuntimeOf(worker);
    for (const store::EntryPtr& entry : entries) {
      // The name may have been dropped, and given to another value.
      runtime.changes().Drop(runtime.rrefs(), entry->name, entry->id).IgnoreError();
    }
  }

  absl::Status CheckIndex(size_t index) const {
    if (index < entries.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("parameter ", index, " of a replica that has ", entries.size()));
  }
  Worker& worker;
  std::vector<store::EntryPtr> entries;  // each has a parameter; shared with the store
  std::vector<RRef> values;
  std::vector<ReplicatedParameter> parameters;
  std::vector<bool> requires_grad;  // as created
};

struct Replica::Leaves {
  ContextPtr context;              // shared with the user's handle
  std::vector<LeafGradient> sums;  // by parameter; not rounded
};

namespace {

// Returns the sum of a gradient's parts, dense and in the parameter's dtype.
// Requires: there are parts.
absl::StatusOr<Tensor> Dense(const LeafGradient& collected) {
  if (!collected.gradient.defined()) {
    PSD_ASSIGN_OR_RETURN(const SparseTensor sum, ConcatSparse(collected.sparse));
    return sum.ToDense();
  }
  if (!collected.rounds_to.has_value()) return collected.gradient;
  return ops::Cast(collected.gradient, *collected.rounds_to);
}

// Returns the gradient of a parameter on `device`, which is the parameter's. A gradient that has
// come from another worker is on the host. Undefined if there is none.
absl::StatusOr<Tensor> GradientOn(Device* device, const LeafGradient& collected) {
  if (!collected.gradient.defined() && collected.sparse.empty()) return Tensor();
  PSD_ASSIGN_OR_RETURN(const Tensor dense, Dense(collected));
  return dense.device() == device ? dense : CopyTo(device, dense);
}

absl::Status CheckParameter(const ReplicaParameter& parameter) {
  if (parameter.elements.defined() && IsFloating(parameter.elements.dtype()))
    return absl::OkStatus();
  return WithRemedy(absl::InvalidArgumentError(absl::StrCat("parameter ", Quoted(parameter.name),
                                                            " of a replica ", "is ",
                                                            parameter.elements.ToString())),
                    "give elements of a floating dtype");
}

absl::StatusOr<store::EntryPtr> Host(worker::Runtime& runtime, const ReplicaParameter& parameter,
                                     const std::string& device) {
  change::CreateValue creation;
  creation.id = runtime.changes().NewId();
  creation.name = parameter.name;
  PSD_ASSIGN_OR_RETURN(creation.elements, parameter.elements.ToHost());
  creation.requires_grad = parameter.requires_grad;
  creation.device = !parameter.device.empty() ? parameter.device : device;
  if (creation.device.empty())
    creation.device = std::string(DeviceName(parameter.elements.device()));
  const GlobalId id = creation.id;
  PSD_ASSIGN_OR_RETURN(store::EntryPtr entry, runtime.changes().Apply(std::move(creation)).Wait());
  if (entry->id == id) return entry;
  return WithRemedy(absl::AlreadyExistsError(absl::StrCat(runtime.name(), " has ", entry->Label(),
                                                          " already, a ", entry->KindName())),
                    "use another name, or drop it");
}

}  // namespace

absl::StatusOr<Replica> Replica::Create(Worker& worker, std::vector<ReplicaParameter> parameters,
                                        const std::string& device) {
  for (const ReplicaParameter& parameter : parameters)
    PSD_RETURN_IF_ERROR(CheckParameter(parameter));
  worker::Runtime& runtime = RuntimeOf(worker);
  auto state = std::make_shared<State>(worker);
  for (const ReplicaParameter& parameter : parameters) {
    PSD_ASSIGN_OR_RETURN(store::EntryPtr entry, Host(runtime, parameter, device));
    state->values.push_back(runtime.rrefs().LocalRRef(entry));
    state->entries.push_back(std::move(entry));
    state->parameters.push_back({parameter.elements.shape(), parameter.elements.dtype(),
                                 parameter.requires_grad, parameter.expert, parameter.name,
                                 state->entries.back()->device()});
    state->requires_grad.push_back(parameter.requires_grad);
  }
  return Replica(std::move(state));
}

size_t Replica::size() const {
  return state_->entries.size();
}
const std::string& Replica::name(size_t index) const {
  return state_->entries[index]->name;
}
const std::vector<ReplicatedParameter>& Replica::parameters() const {
  return state_->parameters;
}
const std::vector<RRef>& Replica::values() const {
  return state_->values;
}
Worker& Replica::worker() const {
  return state_->worker;
}

absl::StatusOr<std::vector<Variable>> Replica::Variables(const Context& context) const {
  PSD_ASSIGN_OR_RETURN(std::vector<Variable> variables,
                       state_->worker.ToHere(state_->values, context));
  for (size_t i = 0; i < variables.size(); ++i)
    if (!state_->parameters[i].requires_grad) variables[i] = variables[i].Detach();
  return variables;
}

absl::StatusOr<std::vector<Tensor>> Replica::Elements() const {
  std::vector<size_t> all(size());
  std::iota(all.begin(), all.end(), size_t{0});
  return Elements(all);
}

absl::StatusOr<std::vector<Tensor>> Replica::Elements(const std::vector<size_t>& indices) const {
  std::vector<store::Parameter*> parameters;
  for (const size_t index : indices) parameters.push_back(state_->entries[index]->parameter.get());
  PSD_ASSIGN_OR_RETURN(std::vector<store::PinnedVersion> pinned,
                       store::Parameter::PinAll(parameters));
  std::vector<Tensor> elements;
  for (store::PinnedVersion& each : pinned) elements.push_back(std::move(each.tensor));
  return elements;
}

absl::Status Replica::Assign(std::vector<std::pair<size_t, Tensor>> elements) {
  for (const auto& [index, next] : elements) {
    PSD_RETURN_IF_ERROR(state_->CheckIndex(index));
    const ReplicatedParameter& parameter = state_->parameters[index];
    if (next.defined() && next.shape() == parameter.shape && next.dtype() == parameter.dtype)
      continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(name(index)), ", ", DTypeName(parameter.dtype),
                     parameter.shape.ToString(), ", cannot take elements ", next.ToString()));
  }
  change::Changes& changes = RuntimeOf(state_->worker).changes();
  std::vector<Future<uint64_t>> assigned;
  for (auto& [index, next] : elements) {
    Promise<uint64_t> version;
    assigned.push_back(version.future());
    changes.Assign(state_->entries[index], std::move(next),
                   [version](absl::StatusOr<uint64_t> number) { version.Set(std::move(number)); });
  }
  absl::Status status;
  for (const Future<uint64_t>& each : assigned) status.Update(each.Wait().status());
  return status;
}

absl::Status Replica::SetFrozen(size_t index, bool frozen) {
  PSD_RETURN_IF_ERROR(state_->CheckIndex(index));
  if (!state_->requires_grad[index]) {
    return WithRemedy(absl::InvalidArgumentError(
                          absl::StrCat(Quoted(name(index)), " was created without requires_grad")),
                      "create it with requires_grad to freeze it at times");
  }
  state_->parameters[index].requires_grad = !frozen;
  return absl::OkStatus();
}

absl::StatusOr<Replica::Collected> Replica::Collect(const Context& context) const {
  auto leaves = std::make_shared<Leaves>();
  PSD_ASSIGN_OR_RETURN(leaves->context, StateOf(context));
  leaves->sums.resize(size());
  for (size_t i = 0; i < size(); ++i) leaves->sums[i].key = state_->entries[i]->id;
  leaves->sums = leaves->context->Collected(leaves->sums);
  Collected collected;
  for (size_t i = 0; i < size(); ++i) {
    PSD_ASSIGN_OR_RETURN(collected.gradients.emplace_back(),
                         GradientOn(parameters()[i].device, leaves->sums[i]));
  }
  collected.leaves = std::move(leaves);
  return collected;
}

absl::Status Replica::Replace(const Collected& before, const std::vector<Tensor>& gradients) const {
  if (gradients.size() != size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(gradients.size(), " gradients for a replica of ", size(), " parameters"));
  }
  std::vector<LeafGradient> replaced, next;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& gradient = gradients[i];
    if (!gradient.defined()) continue;
    const ReplicatedParameter& parameter = state_->parameters[i];
    if (gradient.shape() != parameter.shape || gradient.dtype() != parameter.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(name(i)), ", ", DTypeName(parameter.dtype),
                       parameter.shape.ToString(), ", has no gradient ", gradient.ToString()));
    }
    replaced.push_back(before.leaves->sums[i]);
    LeafGradient& each = next.emplace_back();
    each.key = replaced.back().key;
    each.version = replaced.back().version;
    PSD_ASSIGN_OR_RETURN(each.gradient, CopyTo(parameter.device, gradient));
  }
  PSD_ASSIGN_OR_RETURN(const bool done, before.leaves->context->Replace(replaced, next));
  if (done) return absl::OkStatus();
  return WithRemedy(absl::FailedPreconditionError("a backward has added gradients meanwhile"),
                    "change gradients when no backward runs");
}

absl::StatusOr<std::vector<Tensor>> Replica::Gradients(const Context& context) const {
  PSD_ASSIGN_OR_RETURN(Collected collected, Collect(context));
  return std::move(collected.gradients);
}

absl::Status Replica::SetGradients(const Context& context,
                                   const std::vector<Tensor>& gradients) const {
  PSD_ASSIGN_OR_RETURN(const Collected now, Collect(context));
  return Replace(now, gradients);
}

absl::Status Replica::Synchronize(Group& group, int root, const CollectiveOptions& options) {
  if (root < 0 || root >= group.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameters of rank ", root, " of a group of ", group.size()));
  }
  Digest digest;
  for (const ReplicatedParameter& parameter : parameters()) digest.Add(Description(parameter));
  digest.Add(absl::StrJoin(DeviceNumbers(parameters()), " "));
  CollectiveOptions call = options;
  call.label = absl::StrCat(options.label, options.label.empty() ? "" : ", ", "parameters of rank ",
                            root, ", ", digest.Short());
  // After a call that is refused here, the other ranks would wait for this one.
  if (call.label.size() > services::kMaxLabelBytes) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("the label has ", call.label.size(),
                                                " bytes, with the words of Synchronize; at most ",
                                                services::kMaxLabelBytes)),
        "give a shorter label");
  }
  for (const ReplicatedParameter& parameter : parameters()) {
    if (parameter.expert) continue;
    PSD_RETURN_IF_ERROR(
        services::CheckWhole(Description(parameter), {parameter.dtype, parameter.shape}));
  }
  if (absl::Status given = TakeFrom(group, root, call); !given.ok()) return group.Fail(given);
  return group.Barrier(call);  // all ranks have the elements
}

absl::Status Replica::TakeFrom(Group& group, int root, const CollectiveOptions& options) {
  std::vector<size_t> shared;
  for (size_t i = 0; i < size(); ++i)
    if (!parameters()[i].expert) shared.push_back(i);
  PSD_ASSIGN_OR_RETURN(const std::vector<Tensor> elements, Elements(shared));
  ParcelSource source{root, FormsOf(elements), elements};
  for (const size_t index : shared) source.devices.push_back(parameters()[index].device);
  PSD_ASSIGN_OR_RETURN(std::vector<std::vector<Tensor>> received,
                       BroadcastParcels(group, {source}, options));
  if (group.rank() == root) return absl::OkStatus();
  std::vector<std::pair<size_t, Tensor>> next;
  for (size_t i = 0; i < shared.size(); ++i)
    next.emplace_back(shared[i], std::move(received[0][i]));
  return Assign(std::move(next));
}

}  // namespace psd
