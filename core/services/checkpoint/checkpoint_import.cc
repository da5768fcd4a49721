#include "core/services/checkpoint/checkpoint_import.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/optim/owner/life_codec.h"
#include "core/services/checkpoint/owner_contents.h"
#include "core/store/value.h"

namespace psd::services {
namespace {

using checkpoint::TensorSpec;
using optim::OwnerOptimizer;
using optim::SteppedParameter;
using store::EntryPtr;

// Takes the tensors of a request one after the other.
class TensorReader {
 public:
  explicit TensorReader(const store::Values& values) : values_(values) {}
  absl::StatusOr<Tensor> Next() {
    if (next_ == values_.size())
      return absl::InvalidArgumentError("checkpoint.import: tensors are missing");
    const auto* variable = values_[next_++].As<Variable>();
    if (variable == nullptr || !variable->ok())
      return absl::InvalidArgumentError("checkpoint.import: a value is no tensor");
    return variable->tensor();
  }
  bool AtEnd() const { return next_ == values_.size(); }

 private:
  const store::Values& values_;
  size_t next_ = 0;
};

absl::StatusOr<std::shared_ptr<OwnerOptimizer>> LookupOptimizer(store::Store& store,
                                                                const std::string& name) {
  PSD_ASSIGN_OR_RETURN(EntryPtr entry, store.Lookup(name));
  std::shared_ptr<OwnerOptimizer> optimizer = optim::OptimizerOf(*entry);
  if (optimizer != nullptr) return optimizer;
  return absl::FailedPreconditionError(
      absl::StrCat(entry->Label(), " is ", entry->KindName(), ", not an optimizer"));
}

absl::StatusOr<Incoming::State> DecodeState(store::Store& store, const store::Entry& entry,
                                            const Rows& rows, const v1::ImportedState& message,
                                            TensorReader& tensors) {
  Incoming::State state;
  PSD_ASSIGN_OR_RETURN(state.optimizer, LookupOptimizer(store, message.optimizer()));
  PSD_ASSIGN_OR_RETURN(state.stepped, FindStepped(*state.optimizer, entry));
  if (message.steps() > uint64_t{INT64_MAX})
    return absl::InvalidArgumentError(absl::StrCat(entry.Label(), ": too many steps"));
  state.steps = static_cast<int64_t>(message.steps());
  const std::vector<TensorSpec> expected = DescribeState(*state.stepped);
  if (static_cast<int>(expected.size()) != message.slots_size()) {
    return absl::FailedPreconditionError(absl::StrCat(entry.Label(), " has ", expected.size(),
                                                      " state arrays in '", message.optimizer(),
                                                      "', not ", message.slots_size()));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    PSD_ASSIGN_OR_RETURN(Tensor array, tensors.Next());
    TensorSpec want = expected[i];
    if (rows.table != nullptr) want.shape = checkpoint::WithRows(want.shape, rows.count);
    if (message.slots(static_cast<int>(i)) != want.name || array.dtype() != want.dtype ||
        array.shape() != want.shape) {
      return absl::FailedPreconditionError(
          absl::StrCat("the state '", want.name, "' of ", entry.Label(), " is ",
                       DTypeName(want.dtype), want.shape.ToString(), ", not '",
                       message.slots(static_cast<int>(i)), "' ", array.ToString()));
    }
    state.arrays.push_back(std::move(array));
  }
  return state;
}

absl::StatusOr<Incoming> DecodeItem(store::Store& store, const v1::ImportItem& message,
                                    TensorReader& tensors) {
  Incoming item;
  item.name = message.name();
  item.load = {message.load_incarnation(), message.load_counter()};
  PSD_ASSIGN_OR_RETURN(item.elements, tensors.Next());
  auto entry = store.Lookup(item.name);
  if (entry.ok()) item.entry = *std::move(entry);
  const auto table = item.entry == nullptr ? nullptr : store::AsRows(item.entry->value);
  if (table == nullptr && (item.entry == nullptr || item.entry->parameter == nullptr)) {
    if (item.entry != nullptr && item.entry->value.As<Variable>() == nullptr) {
      return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                            item.entry->Label(), " is ", item.entry->KindName(), ", not a tensor")),
                        "drop it first");
    }
    if (message.states_size() == 0 && message.first_row() == 0) return item;
    return absl::FailedPreconditionError(
        absl::StrCat("'", item.name, "' is no parameter here, but state or rows come with it"));
  }
  const DType dtype = table != nullptr ? table->dtype() : item.entry->parameter->dtype();
  Shape shape = table != nullptr ? table->shape() : item.entry->parameter->shape();
  const bool some = table != nullptr && item.elements.rank() == 2;
  PSD_ASSIGN_OR_RETURN(
      item.rows, RowsOf(*item.entry, message.first_row(), some ? item.elements.shape()[0] : 0));
  if (some) shape = checkpoint::WithRows(shape, item.rows.count);
  if (item.elements.dtype() != dtype || item.elements.shape() != shape) {
    return absl::FailedPreconditionError(absl::StrCat(
        item.entry->Label(), " is ", item.entry->KindName(), ", not ", item.elements.ToString()));
  }
  for (const v1::ImportedState& state : message.states()) {
    PSD_ASSIGN_OR_RETURN(Incoming::State decoded,
                         DecodeState(store, *item.entry, item.rows, state, tensors));
    item.states.push_back(std::move(decoded));
  }
  return item;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Inbound>> DecodeImport(store::Store& store,
                                                      const optim::LifeOwner& here,
                                                      const v1::ImportRequest& message,
                                                      const store::Values& values) {
  auto import = std::make_shared<Inbound>();
  TensorReader tensors(values);
  for (const v1::ImportItem& item : message.items()) {
    PSD_ASSIGN_OR_RETURN(Incoming decoded, DecodeItem(store, item, tensors));
    import->items.push_back(std::move(decoded));
  }
  if (!tensors.AtEnd())
    return absl::InvalidArgumentError("checkpoint.import: the request has tensors for no value");
  for (const v1::RestoredOptimizer& restored : message.optimizers()) {
    PSD_ASSIGN_OR_RETURN(auto optimizer, LookupOptimizer(store, restored.name()));
    if (!std::isfinite(restored.loss_scale()) || restored.loss_scale() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", restored.name(), "' with the loss scale ", restored.loss_scale()));
    }
    PSD_ASSIGN_OR_RETURN(optim::OptimizerLife life, optim::DecodeLife(restored));
    PSD_RETURN_IF_ERROR(Annotate(optim::CheckLifeHere(life, here), restored.name()));
    import->optimizers.push_back({std::move(optimizer),
                                  restored.steps_accepted(),
                                  restored.loss_scale(),
                                  restored.good_steps(),
                                  restored.kept(),
                                  std::move(life),
                                  { restored.judged_incarnation(),
                                    restored.judged_counter() }});
  }
  return import;
}

bool Changes(const Incoming& item) {
  return item.entry != nullptr && (item.entry->parameter != nullptr || item.rows.table != nullptr);
}

absl::Status Replace(change::Changes& changes, const Incoming& item) {
  for (const Incoming::State& state : item.states) {
    const absl::Status loads = optim::CheckLoad(item.load, state.optimizer->life());
    PSD_RETURN_IF_ERROR(Annotate(loads, item.entry->Label()));
  }
  return changes.Apply(change::LoadValue{item.entry, item.rows.first, item.elements, item.states});
}

absl::Status MakeValue(change::Changes& changes, rref::RRefContext& rrefs, const Incoming& item) {
  if (item.entry != nullptr) PSD_RETURN_IF_ERROR(changes.Drop(rrefs, item.name, item.entry->id));
  const GlobalId id = changes.NewId();
  const auto entry = changes.Apply(change::CreateValue{id, item.name, nullptr, item.elements});
  // The entry is ready at once, unless another call makes a value of that name. This code does not
  // wait for that call, because the import holds claims.
  if (entry.IsReady() && (!entry.Wait().ok() || (*entry.Wait())->id == id))
    return entry.Wait().status();
  return WithRemedy(absl::AbortedError(absl::StrCat("another call has made '", item.name,
                                                    "' while it was loaded")),
                    "load again");
}

void AddClaimsOf(const Inbound::Restored& restored, std::vector<GlobalId>& ids) {
  // While this claim is held, no step is between its start and its count.
  ids.push_back(restored.optimizer->claim_id());
  if (restored.kept) return;
  const optim::ParameterTable& table = restored.optimizer->table();
  for (size_t i = 0; i < table.size(); ++i) ids.push_back(table[i].id());
}

absl::Status Restore(const Inbound::Restored& restored) {
  if (restored.kept) {
    if (restored.judged.IsNone()) return restored.optimizer->SetLife(restored.life);
    return restored.optimizer->JoinLife(restored.life, restored.judged, restored.steps_accepted);
  }
  return restored.optimizer->FinishLoad(
      restored.life, restored.judged,
      {restored.steps_accepted, restored.loss_scale, restored.good_steps});
}

}  // namespace psd::services
