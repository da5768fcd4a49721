#include "client/save_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint/save_names.h"
#include "core/optim/owner/optimizer_life.h"

namespace psd {
namespace {

using checkpoint::CheckpointIndex;
using checkpoint::SavedOptimizer;
using checkpoint::SavedState;
using checkpoint::TensorSpec;

// Whether the parts of two owners belong to the same optimizer.
bool SameOptimizer(const SavedOptimizer& a, const SavedOptimizer& b) {
  return a.name == b.name && a.type == b.type && a.settings == b.settings &&
         std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(),
                    [](const checkpoint::SavedGroup& x, const checkpoint::SavedGroup& y) {
                      return x.created_with == y.created_with;
                    });
}

// Whether `owner` is the lead among the owners that have parts of the optimizer so far; see
// docs/decisions/0016-one-lead.md.
bool Leads(const std::string& owner, const SavedOptimizer& optimizer) {
  return std::all_of(optimizer.parameters.begin(), optimizer.parameters.end(),
                     [&](const SavedState& other) { return owner < other.owner; });
}

// Returns the number of the index's entry for an optimizer, after merging an owner's part into it.
// The present options and the loss scale of the entry are those of the lead, which decides them.
size_t FindOrAddOptimizer(CheckpointIndex& index, const std::string& owner,
                          const SavedOptimizer& part) {
  for (size_t i = 0; i < index.optimizers.size(); ++i) {
    SavedOptimizer& known = index.optimizers[i];
    if (!SameOptimizer(known, part)) continue;
    known.steps_accepted = std::max(known.steps_accepted, part.steps_accepted);
    if (Leads(owner, known)) {
      known.groups = part.groups;
      known.loss_scale = part.loss_scale;
      known.good_steps = part.good_steps;
    }
    return i;
  }
  SavedOptimizer& added = index.optimizers.emplace_back(part);
  added.parameters.clear();
  added.parts.clear();
  return index.optimizers.size() - 1;
}

// Returns the name of the optimizer's lead among the owners of its life; empty if its life has no
// owners yet.
std::string LeadOf(const SavedOptimizer& optimizer, const ContentsByOwner& contents) {
  std::string lead;
  for (const checkpoint::SavedPart& part : optimizer.parts) {
    for (const services::HostedOptimizer& hosted : contents.at(part.owner).optimizers) {
      if (hosted.optimizer.name != optimizer.name) continue;
      for (const optim::LifeOwner& owner : hosted.life.owners)
        if (lead.empty() || owner.name < lead) lead = owner.name;
    }
  }
  return lead;
}

size_t AddStateFile(OwnerPlan& owner) {
  owner.files.push_back({checkpoint::StateFileName(owner.owner, owner.files.size() - 1), {}});
  return owner.files.size() - 1;
}

// Plans the files for an owner's part of an optimizer: one file for all state, except that each
// state array of a table has a file of its own. A table is copied in row ranges, so its arrays grow
// side by side, and a file can only be appended to.
absl::Status PlanOptimizer(const services::HostedOptimizer& hosted, CheckpointIndex& index,
                           OwnerPlan& owner, std::map<std::string, ValuePlan*>& values) {
  if (hosted.optimizer.parameters.empty()) return absl::OkStatus();
  const size_t number = FindOrAddOptimizer(index, owner.owner, hosted.optimizer);
  index.optimizers[number].parts.push_back(
      {owner.owner, hosted.life.id.ToString(), hosted.optimizer.steps_accepted});
  const size_t file = AddStateFile(owner);
  std::vector<SavedState>& parameters = index.optimizers[number].parameters;
  for (size_t i = 0; i < hosted.optimizer.parameters.size(); ++i) {
    SavedState state = hosted.optimizer.parameters[i];
    state.owner = owner.owner;
    state.file = owner.files[file].name;
    auto stepped = values.find(state.parameter);
    if (stepped == values.end() || i >= hosted.state.size()) {
      return absl::InternalError(absl::StrCat(owner.owner, " says that optimizer '",
                                              hosted.optimizer.name, "' steps '", state.parameter,
                                              "', and does not describe it"));
    }
    ValuePlan& value = *stepped->second;
    StatePlan plan;
    plan.optimizer_id = hosted.id;
    plan.optimizer = number;
    plan.parameter = parameters.size();
    plan.arrays = hosted.state[i];
    plan.step_file = file;
    for (const TensorSpec& array : plan.arrays) {
      plan.files.push_back(value.rows > 0 ? AddStateFile(owner) : file);
      state.slots.push_back({array.name, owner.files[plan.files.back()].name});
      value.bytes += array.bytes();
    }
    value.states.push_back(std::move(plan));
    parameters.push_back(std::move(state));
  }
  return absl::OkStatus();
}

// Lists the tensors of the owner's files in the order in which the values will come. The counts of
// steps are at the end because they are known last.
void PlanFiles(const CheckpointIndex& index, OwnerPlan& owner) {
  const auto add = [&owner](size_t file, const StatePlan& state, absl::string_view slot,
                            DType dtype, const Shape& shape) {
    owner.files[file].tensors.push_back(
        {checkpoint::StateTensorName(state.parameter, slot), dtype, shape});
  };
  for (const ValuePlan& plan : owner.values) {
    const checkpoint::SavedValue& value = index.values[plan.value];
    owner.files[0].tensors.push_back({value.name, value.dtype, value.shape});
    for (const StatePlan& state : plan.states) {
      for (size_t i = 0; i < state.arrays.size(); ++i) {
        const TensorSpec& array = state.arrays[i];
        add(state.files[i], state, array.name, array.dtype, array.shape);
      }
    }
  }
  for (const ValuePlan& plan : owner.values)
    for (const StatePlan& state : plan.states)
      add(state.step_file, state, checkpoint::kStepSlot, DType::kF32, Shape{});
}

}  // namespace

absl::Status PlanOwner(const std::string& name, const services::OwnerContents& contents,
                       SavePlan& plan) {
  OwnerPlan& owner = plan.owners.emplace_back();
  owner.owner = name;
  owner.writes_files = contents.writes_files;
  owner.files.push_back({checkpoint::ValuesFileName(name), {}});
  owner.values.reserve(contents.values.size());
  // Values with wide elements come first, so that all tensors are aligned in their file.
  std::vector<const services::HostedValue*> sorted;
  for (const services::HostedValue& hosted : contents.values) sorted.push_back(&hosted);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return ItemSize(a->value.dtype) > ItemSize(b->value.dtype);
  });
  std::map<std::string, ValuePlan*> by_name;
  for (const services::HostedValue* hosted : sorted) {
    checkpoint::SavedValue& value = plan.index.values.emplace_back(hosted->value);
    value.owner = name;
    value.file = owner.files[0].name;
    ValuePlan& each = owner.values.emplace_back();
    each.value = plan.index.values.size() - 1;
    each.id = hosted->id;
    each.bytes = TensorSpec{"", value.dtype, value.shape}.bytes();
    if (value.kind == checkpoint::ValueKind::kRows) each.rows = value.shape[0];
    by_name[value.name] = &each;
  }
  for (const services::HostedOptimizer& hosted : contents.optimizers) {
    owner.steps_accepted += hosted.optimizer.steps_accepted;
    PSD_RETURN_IF_ERROR(PlanOptimizer(hosted, plan.index, owner, by_name));
  }
  PlanFiles(plan.index, owner);
  for (const ValuePlan& value : owner.values) plan.bytes += value.bytes;
  for (const std::string& text : contents.left_out)
    plan.index.left_out.push_back(absl::StrCat(name, ": ", text));
  return absl::OkStatus();
}

void NameMissingLeads(const ContentsByOwner& contents, SavePlan& plan) {
  for (const SavedOptimizer& optimizer : plan.index.optimizers) {
    if (optimizer.loss_scale == 0) continue;
    const std::string lead = LeadOf(optimizer, contents);
    const bool saved =
        std::any_of(optimizer.parts.begin(), optimizer.parts.end(),
                    [&](const checkpoint::SavedPart& part) { return part.owner == lead; });
    if (saved || lead.empty()) continue;
    plan.index.left_out.push_back(absl::StrCat(
        lead, ": the present loss scale of '", optimizer.name,
        "', which only this owner knows; a load begins with the scale ", optimizer.loss_scale));
  }
}

}  // namespace psd
