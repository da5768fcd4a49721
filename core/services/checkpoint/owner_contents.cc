#include "core/services/checkpoint/owner_contents.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/functional/row_optimizer.h"
#include "core/optim/options/settings_fields.h"
#include "core/optim/owner/hosted_optimizer.h"
#include "core/store/rows.h"

namespace psd::services {
namespace {

using checkpoint::SavedState;
using checkpoint::SavedValue;
using checkpoint::TensorSpec;
using checkpoint::ValueKind;
using optim::OwnerOptimizer;
using store::EntryPtr;

// Returns the dense tensor that `entry` hosts, if its value is a tensor and not a parameter.
std::optional<Tensor> PlainTensor(const store::Entry& entry) {
  const auto* variable = entry.value.As<Variable>();
  if (variable == nullptr || !variable->ok() || !variable->tensor().defined()) return std::nullopt;
  return variable->tensor();
}

std::optional<HostedValue> DescribeValue(const store::Entry& entry) {
  HostedValue hosted;
  hosted.id = entry.id;
  SavedValue& value = hosted.value;
  value.name = entry.name;
  if (entry.parameter != nullptr) {
    value.kind = ValueKind::kParameter;
    value.dtype = entry.parameter->dtype();
    value.shape = entry.parameter->shape();
    value.requires_grad = entry.parameter->requires_grad();
    value.version = entry.parameter->version();
    return hosted;
  }
  if (const auto rows = store::AsRows(entry.value); rows != nullptr) {
    value.kind = ValueKind::kRows;
    value.dtype = rows->dtype();
    value.shape = rows->shape();
    value.requires_grad = rows->requires_grad();
    value.version = rows->version();
    return hosted;
  }
  const std::optional<Tensor> tensor = PlainTensor(entry);
  if (!tensor.has_value()) return std::nullopt;
  value.kind = ValueKind::kTensor;
  value.dtype = tensor->dtype();
  value.shape = tensor->shape();
  return hosted;
}

// Parameters without a name cannot be found again when the save is loaded, so they are left out.
// `named` has the ids of all values that have a name. A parameter whose name was dropped is not
// among them, even if another value has that name now.
void AddOptimizer(const store::Entry& entry, const OwnerOptimizer& optimizer,
                  const absl::flat_hash_set<GlobalId>& named, OwnerContents& contents) {
  HostedOptimizer hosted;
  hosted.life = optimizer.life();
  if (hosted.life.stage == optim::LifeStage::kEnded) return;  // its name is being dropped
  hosted.id = entry.id;
  hosted.optimizer.name = entry.name;
  const std::vector<optim::OptimizerSpec>& created = optimizer.created();
  hosted.optimizer.type = created[0].type;
  for (size_t i = 0; i < created.size(); ++i) {
    const auto now = optimizer.options(i);
    hosted.optimizer.groups.push_back(
        {now.ok() ? now->spec.options : created[i].options, created[i].options});
  }
  hosted.optimizer.settings = optim::SettingsFields(optimizer.settings());
  const OwnerOptimizer::Stats stats = optimizer.stats();
  hosted.optimizer.steps_accepted = stats.steps;
  hosted.optimizer.loss_scale = stats.loss_scale;
  hosted.optimizer.good_steps = stats.good_steps;
  const optim::ParameterTable& table = optimizer.table();
  for (size_t i = 0; i < table.size(); ++i) {
    const optim::SteppedParameter& parameter = table[i];
    if (!named.contains(parameter.id())) {
      const std::string& name = parameter.entry()->name;
      contents.left_out.push_back(
          name.empty() ? absl::StrCat("an unnamed parameter of optimizer '", entry.name, "'")
                       : absl::StrCat("a parameter of optimizer '", entry.name, "' whose name, '",
                                      name, "', was dropped"));
      continue;
    }
    SavedState& state = hosted.optimizer.parameters.emplace_back();
    state.parameter = parameter.entry()->name;
    state.group = parameter.group();
    hosted.state.push_back(DescribeState(parameter));
  }
  contents.optimizers.push_back(std::move(hosted));
}

std::string Describe(const SavedValue& value) {
  const absl::string_view kind = value.kind == ValueKind::kParameter ? "parameter "
                                 : value.kind == ValueKind::kRows    ? "rows "
                                                                     : "tensor ";
  return absl::StrCat(kind, DTypeName(value.dtype), value.shape.ToString(),
                      value.requires_grad ? " that requires grad" : "");
}

absl::Status CheckValue(store::Store& store, const SavedValue& wanted, uint64_t* new_bytes) {
  PSD_RETURN_IF_ERROR(store.CheckName(wanted.name));
  auto entry = store.Lookup(wanted.name);
  if (!entry.ok()) {
    *new_bytes += static_cast<uint64_t>(wanted.shape.NumElements()) * ItemSize(wanted.dtype) *
                  (wanted.requires_grad && wanted.kind == ValueKind::kParameter ? 2 : 1);
    return absl::OkStatus();
  }
  const std::optional<HostedValue> there = DescribeValue(**entry);
  if (there.has_value() && there->value.kind == wanted.kind && there->value.dtype == wanted.dtype &&
      there->value.shape == wanted.shape && there->value.requires_grad == wanted.requires_grad) {
    return absl::OkStatus();
  }
  return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                        "'", wanted.name, "' exists as ",
                        there.has_value() ? Describe(there->value) : (*entry)->KindName(),
                        ", and the save has a ", Describe(wanted))),
                    "drop it, or load elsewhere");
}

absl::Status CheckState(const std::string& label, const std::vector<TensorSpec>& there,
                        const std::vector<TensorSpec>& wanted) {
  const auto text = [](const std::vector<TensorSpec>& arrays) {
    return absl::StrJoin(arrays, ", ", [](std::string* out, const TensorSpec& array) {
      absl::StrAppend(out, array.name, " ", DTypeName(array.dtype), array.shape.ToString());
    });
  };
  const std::string have = text(there), want = text(wanted);
  if (have == want) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(label, " keeps the state (", have, "), and the save has (", want, ")"));
}

std::string Describe(const std::vector<optim::OptimizerSpec>& groups,
                     const optim::OptimizerSettings& settings) {
  const std::string text =
      absl::StrJoin(groups, "; ", [](std::string* out, const optim::OptimizerSpec& spec) {
        absl::StrAppend(out, spec.ToString());
      });
  return absl::StrCat(text, settings.ToString());
}

// Checks that an existing optimizer has the same type and options, and steps the same parameters.
absl::Status CheckExisting(store::Store& store, const EntryPtr& entry,
                           const HostedOptimizer& wanted) {
  const auto optimizer = optim::OptimizerOf(*entry);
  const std::string label = entry->Label();
  if (optimizer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(label, " exists as ", entry->KindName(), ", and the save has an optimizer"));
  }
  PSD_ASSIGN_OR_RETURN(optim::OptimizerSettings settings,
                       optim::SettingsFromFields(wanted.optimizer.settings));
  std::vector<optim::OptimizerSpec> saved;
  for (const checkpoint::SavedGroup& group : wanted.optimizer.groups)
    saved.push_back({wanted.optimizer.type, group.created_with});
  const std::string there = Describe(optimizer->created(), optimizer->settings());
  if (const std::string want = Describe(saved, settings); there != want) {
    return WithRemedy(absl::FailedPreconditionError(
                          absl::StrCat(label, " exists as ", there, ", and the save has ", want)),
                      "drop it, or load elsewhere");
  }
  std::map<std::string, const optim::SteppedParameter*> parameters;
  for (size_t i = 0; i < optimizer->table().size(); ++i) {
    const optim::SteppedParameter& parameter = optimizer->table()[i];
    const store::Entry& entry_of = *parameter.entry();
    parameters[entry_of.name.empty() ? entry_of.id.ToString() : entry_of.name] = &parameter;
  }
  if (parameters.size() != wanted.optimizer.parameters.size()) {
    return WithRemedy(
        absl::FailedPreconditionError(
            absl::StrCat(label, " steps ", parameters.size(), " parameters here, and the save has ",
                         wanted.optimizer.parameters.size(), " for this owner")),
        "drop it first");
  }
  for (size_t i = 0; i < wanted.optimizer.parameters.size(); ++i) {
    const std::string& name = wanted.optimizer.parameters[i].parameter;
    auto found = parameters.find(name);
    if (found == parameters.end()) {
      return WithRemedy(absl::FailedPreconditionError(
                            absl::StrCat(label, " exists and does not step '", name, "'")),
                        "drop it first");
    }
    const auto named = store.Lookup(name);
    if (!named.ok() || (*named)->id != found->second->id()) {
      return WithRemedy(
          absl::FailedPreconditionError(absl::StrCat(label, " steps a parameter that was called '",
                                                     name, "' and has lost that name")),
          "drop the optimizer first");
    }
    PSD_RETURN_IF_ERROR(CheckState(absl::StrCat(label, " for '", name, "'"),
                                   DescribeState(*found->second), wanted.state[i]));
  }
  return absl::OkStatus();
}

// Returns the state that `function` would keep for `value`. Errors: INVALID_ARGUMENT if it cannot
// step `value`.
absl::StatusOr<std::vector<TensorSpec>> NewState(const optim::FunctionalOptimizer& function,
                                                 const SavedValue& value) {
  std::vector<TensorSpec> arrays;
  if (value.kind == ValueKind::kRows) {
    if (function.rows() == nullptr)
      return absl::InvalidArgumentError(absl::StrCat(function.spec().type, " steps no rows"));
    PSD_RETURN_IF_ERROR(function.rows()->CheckOptions());
    for (const optim::RowSlot& slot : function.rows()->Slots(value.dtype)) {
      arrays.push_back({slot.slot.name, slot.slot.dtype,
                        slot.one_per_row ? Shape{value.shape[0]} : value.shape});
    }
    return arrays;
  }
  PSD_RETURN_IF_ERROR(function.CheckDType(value.dtype));
  for (const optim::StateSlot& slot : function.Slots(value.dtype))
    arrays.push_back({slot.name, slot.dtype, value.shape});
  return arrays;
}

// Checks an optimizer that is to be created, and adds the size of its state to `new_bytes`.
absl::Status CheckNew(const optim::OptimizerRegistry& registry, const HostedOptimizer& wanted,
                      const std::map<std::string, const SavedValue*>& values, uint64_t* new_bytes) {
  const checkpoint::SavedOptimizer& saved = wanted.optimizer;
  std::vector<std::unique_ptr<optim::FunctionalOptimizer>> functions;
  PSD_RETURN_IF_ERROR(optim::SettingsFromFields(saved.settings));
  for (const checkpoint::SavedGroup& group : saved.groups) {
    auto function = registry.Create({saved.type, group.created_with});
    if (function.ok()) PSD_RETURN_IF_ERROR(registry.Create({saved.type, group.options}));
    if (!function.ok())
      return Annotate(function.status(), absl::StrCat("optimizer '", saved.name, "'"));
    functions.push_back(*std::move(function));
  }
  for (size_t i = 0; i < saved.parameters.size(); ++i) {
    const SavedState& state = saved.parameters[i];
    const std::string label =
        absl::StrCat("optimizer '", saved.name, "' for '", state.parameter, "'");
    auto found = values.find(state.parameter);
    if (found == values.end() || !found->second->requires_grad)
      return absl::InvalidArgumentError(
          absl::StrCat(label, ": the save has no parameter of that name that requires grad"));
    const SavedValue& value = *found->second;
    const optim::FunctionalOptimizer& function = *functions[state.group];
    auto slots = NewState(function, value);
    if (!slots.ok()) return Annotate(slots.status(), label);
    for (const TensorSpec& slot : *slots) *new_bytes += slot.bytes();
    PSD_RETURN_IF_ERROR(CheckState(label, *slots, wanted.state[i]));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<TensorSpec> DescribeState(const optim::SteppedParameter& parameter) {
  const store::Entry& entry = *parameter.entry();
  const auto rows = store::AsRows(entry.value);
  const Shape shape = rows != nullptr ? rows->shape() : entry.parameter->shape();
  std::vector<TensorSpec> arrays;
  for (const optim::StateArray& array : parameter.state()) {
    const auto elements = static_cast<int64_t>(array.bytes / ItemSize(array.dtype));
    const bool same = elements == shape.NumElements();
    arrays.push_back({array.name, array.dtype, same ? shape : Shape{elements}});
  }
  return arrays;
}

uint64_t StepsAccepted(const store::Store& store) {
  uint64_t steps = 0;
  for (const EntryPtr& entry : store.List("")) {
    if (const auto optimizer = optim::OptimizerOf(*entry); optimizer != nullptr)
      steps += optimizer->stats().steps;
  }
  return steps;
}

OwnerContents DescribeContents(const store::Store& store) {
  OwnerContents contents;
  const std::vector<EntryPtr> entries = store.List("");
  absl::flat_hash_set<GlobalId> named;
  for (const EntryPtr& entry : entries) named.insert(entry->id);
  for (const EntryPtr& entry : entries) {
    if (const auto optimizer = optim::OptimizerOf(*entry); optimizer != nullptr) {
      AddOptimizer(*entry, *optimizer, named, contents);
    } else if (std::optional<HostedValue> value = DescribeValue(*entry); value.has_value()) {
      contents.values.push_back(*std::move(value));
    } else {
      contents.left_out.push_back(absl::StrCat(entry->Label(), " (", entry->KindName(), ")"));
    }
  }
  return contents;
}

absl::Status CheckContents(store::Store& store, const optim::OptimizerRegistry& optimizers,
                           const OwnerContents& wanted) {
  uint64_t new_bytes = 0;
  std::map<std::string, const SavedValue*> values;
  for (const HostedValue& hosted : wanted.values) {
    PSD_RETURN_IF_ERROR(CheckValue(store, hosted.value, &new_bytes));
    values[hosted.value.name] = &hosted.value;
  }
  for (const HostedOptimizer& hosted : wanted.optimizers) {
    PSD_RETURN_IF_ERROR(store.CheckName(hosted.optimizer.name));
    auto entry = store.Lookup(hosted.optimizer.name);
    PSD_RETURN_IF_ERROR(entry.ok() ? CheckExisting(store, *entry, hosted)
                                   : CheckNew(optimizers, hosted, values, &new_bytes));
  }
  const store::Store::Stats stats = store.stats();
  if (stats.limit_bytes == 0 || stats.used_bytes + new_bytes <= stats.limit_bytes)
    return absl::OkStatus();
  return WithRemedy(
      absl::ResourceExhaustedError(absl::StrCat(
          "what is to be loaded here needs ", new_bytes, " bytes more, and the memory budget has ",
          stats.limit_bytes - std::min(stats.used_bytes, stats.limit_bytes), " left")),
      "raise it, or load into more owners");
}

}  // namespace psd::services
