#include "core/optim/options/option_groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::optim {
namespace {

// Returns whether one can continue with the state of the other.
bool SameSlots(const std::vector<StateSlot>& a, const std::vector<StateSlot>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const StateSlot& x, const StateSlot& y) {
                      return x.name == y.name && x.dtype == y.dtype;
                    });
}

// Returns the name of the option that holds the momentum, or null if the optimizer has none.
const char* MomentumOption(const OptimizerSpec& spec) {
  for (const char* name : {"beta1", "momentum"})
    if (spec.options.find(name) != spec.options.end()) return name;
  return nullptr;
}

}  // namespace

void OptionGroups::Add(FunctionPtr function, std::vector<DType> dtypes) {
  if (dtypes.empty()) dtypes.push_back(DType::kF32);
  std::sort(dtypes.begin(), dtypes.end());
  dtypes.erase(std::unique(dtypes.begin(), dtypes.end()), dtypes.end());
  Group& group = groups_.emplace_back();
  group.function = std::move(function);
  group.dtypes = std::move(dtypes);
}

GroupFunctions OptionGroups::functions() const {
  GroupFunctions functions;
  for (const Group& group : groups_) functions.push_back(group.function);
  return functions;
}

absl::StatusOr<GroupOptions> OptionGroups::Get(size_t group) const {
  if (group >= groups_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("group ", group, " of an optimizer with ",
                                                   groups_.size(), "; they count from 0"));
  }
  return GroupOptions{groups_[group].function->spec(), groups_[group].version};
}

absl::StatusOr<FunctionPtr> OptionGroups::With(
    size_t group, const std::map<std::string, double>& options, const OptimizerRegistry& registry,
    absl::FunctionRef<absl::Status(const FunctionalOptimizer&)> check) const {
  PSD_ASSIGN_OR_RETURN(GroupOptions current, Get(group));
  current.spec.options = options;
  PSD_ASSIGN_OR_RETURN(FunctionPtr changed, registry.Create(current.spec));
  PSD_RETURN_IF_ERROR(check(*changed));
  const Group& place = groups_[group];
  for (DType dtype : place.dtypes) {
    if (SameSlots(place.function->Slots(dtype), changed->Slots(dtype))) continue;
    return WithRemedy(absl::FailedPreconditionError(
                          absl::StrCat(changed->spec().ToString(), " needs other state than ",
                                       place.function->spec().ToString(), " has reserved")),
                      "create an optimizer with options that need the same");
  }
  return changed;
}

void OptionGroups::BeginLife() {
  for (Group& group : groups_) group.version = 1;
}

absl::StatusOr<GroupOptions> OptionGroups::Change(
    size_t group, const std::map<std::string, double>& changes, uint64_t version,
    const OptimizerRegistry& registry,
    absl::FunctionRef<absl::Status(const FunctionalOptimizer&)> check) {
  PSD_ASSIGN_OR_RETURN(GroupOptions current, Get(group));
  if (version != 0 && version < current.version) return current;
  std::map<std::string, double> options = std::move(current.spec.options);
  for (const auto& [name, value] : changes) options[name] = value;
  Group& place = groups_[group];
  PSD_ASSIGN_OR_RETURN(place.function, With(group, options, registry, check));
  place.version = version == 0 ? place.version + 1 : version;
  return Get(group);
}

absl::Status CheckSchedule(const Schedule& schedule, const OptimizerSpec& spec) {
  if (schedule.IsConstant()) return absl::OkStatus();
  if (spec.options.find("lr") == spec.options.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.type, " has no option 'lr' for a schedule to set"));
  }
  if (!schedule.cycle_momentum) return absl::OkStatus();
  const char* momentum = MomentumOption(spec);
  if (momentum == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(spec.type,
                     " has no option 'momentum' or 'beta1' for a schedule to set; it cannot have "
                     "cycle_momentum"));
  }
  // An optimizer created with momentum 0 may have no state for momentum.
  if (spec.options.at(momentum) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      spec.type, ": ", momentum, " is 0, and a schedule with cycle_momentum needs it above 0"));
}

absl::Status ApplySchedule(const Schedule& schedule, uint64_t step,
                           const OptimizerRegistry& registry, GroupFunctions& functions) {
  for (FunctionPtr& function : functions) {
    OptimizerSpec spec = function->spec();
    double& rate = spec.options.at("lr");
    rate = schedule.LearningRate(rate, step);
    if (schedule.cycle_momentum) spec.options.at(MomentumOption(spec)) = schedule.Momentum(step);
    PSD_ASSIGN_OR_RETURN(function, registry.Create(spec));
  }
  return absl::OkStatus();
}

}  // namespace psd::optim
