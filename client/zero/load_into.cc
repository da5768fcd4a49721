#include "client/zero/load_into.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/option_groups.h"
#include "core/store/parameter.h"
#include "core/store/store.h"

namespace psd::zero {
namespace {

absl::Status Differs(const std::string& how) {
  return WithRemedy(absl::FailedPreconditionError(absl::StrCat("the snapshot is of another "
                                                               "optimizer: ",
                                                               how)),
                    "load it into an optimizer of the same type over the same parameters");
}

absl::Status CheckParameter(const store::Entry& entry, const ParameterSnapshot& saved) {
  const store::Parameter& here = *entry.parameter;
  if (saved.name == entry.name && saved.shape == here.shape() && saved.dtype == here.dtype())
    return absl::OkStatus();
  return Differs(absl::StrCat("it has ", Quoted(saved.name), ", ", DTypeName(saved.dtype),
                              saved.shape.ToString(), ", in the place of ", entry.Label(), ", ",
                              DTypeName(here.dtype()), here.shape().ToString()));
}

absl::Status CheckState(const store::Entry& entry, const std::vector<optim::StateSlot>& slots,
                        const ParameterSnapshot& saved) {
  const auto differs = [&](const std::string& how) {
    return WithRemedy(
        absl::FailedPreconditionError(absl::StrCat("the state of ", entry.Label(), ": ", how)),
        "load the state of an optimizer of the same type, with options that need the same state");
  };
  if (slots.size() != saved.state.size())
    return differs(absl::StrCat(saved.state.size(), " arrays, expected ", slots.size()));
  if (saved.steps > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return differs(absl::StrCat("it is after ", saved.steps, " steps"));
  for (const optim::StateSlot& slot : slots) {
    const auto found = saved.state.find(slot.name);
    if (found == saved.state.end()) return differs(absl::StrCat("no '", slot.name, "'"));
    const Tensor& given = found->second;
    if (given.defined() && given.dtype() == slot.dtype && given.OnHost() &&
        given.shape() == entry.parameter->shape()) {
      continue;
    }
    return differs(absl::StrCat("'", slot.name, "' is ", given.ToString(), ", expected ",
                                DTypeName(slot.dtype), entry.parameter->shape().ToString()));
  }
  return absl::OkStatus();
}

// The parameters of a group that require grad. The others have no state, so a snapshot need not
// have the same ones.
struct Matched {
  std::vector<store::EntryPtr> entries;
  std::vector<const ParameterSnapshot*> saved;  // for each entry
};

absl::StatusOr<Matched> Match(size_t group, const std::vector<store::EntryPtr>& entries,
                              const std::vector<ParameterSnapshot>& saved) {
  Matched matched;
  for (const store::EntryPtr& entry : entries)
    if (entry->parameter->requires_grad()) matched.entries.push_back(entry);
  for (const ParameterSnapshot& parameter : saved)
    if (parameter.requires_grad) matched.saved.push_back(&parameter);
  if (matched.saved.size() != matched.entries.size()) {
    return Differs(absl::StrCat("group ", group, " has ", matched.saved.size(),
                                " parameters that require grad, not ", matched.entries.size()));
  }
  for (size_t i = 0; i < matched.entries.size(); ++i)
    PSD_RETURN_IF_ERROR(CheckParameter(*matched.entries[i], *matched.saved[i]));
  return matched;
}

absl::StatusOr<std::vector<Matched>> MatchGroups(const LocalOptimizer& local,
                                                 const EntryGroups& parameters,
                                                 const OptimizerSnapshot& snapshot) {
  if (snapshot.type != local.type())
    return Differs(absl::StrCat(Quoted(snapshot.type), ", not ", Quoted(local.type())));
  if (snapshot.groups.size() != parameters.size()) {
    return Differs(
        absl::StrCat("it has ", snapshot.groups.size(), " groups, not ", parameters.size()));
  }
  if (!(snapshot.loss_scale >= 0 && std::isfinite(snapshot.loss_scale)))
    return Differs(absl::StrCat("its loss scale is ", snapshot.loss_scale));
  std::vector<Matched> groups;
  for (size_t g = 0; g < parameters.size(); ++g) {
    PSD_ASSIGN_OR_RETURN(groups.emplace_back(),
                         Match(g, parameters[g], snapshot.groups[g].parameters));
  }
  return groups;
}

using OptionsOfGroups = std::vector<std::map<std::string, double>>;

absl::StatusOr<OptionsOfGroups> PresentOptions(const LocalOptimizer& local) {
  OptionsOfGroups present;
  for (size_t g = 0; g < local.num_groups(); ++g) {
    PSD_ASSIGN_OR_RETURN(OptimizerSpec spec, local.Options(g));
    present.push_back(std::move(spec.options));
  }
  return present;
}

absl::Status CheckStates(const LocalOptimizer& local, const EntryGroups& parameters,
                         const OptionsOfGroups& options, const std::vector<Matched>& groups) {
  PSD_ASSIGN_OR_RETURN(const optim::GroupFunctions functions,
                       local.FunctionsWith(options, parameters));
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].entries.size(); ++i) {
      const store::Entry& entry = *groups[g].entries[i];
      PSD_RETURN_IF_ERROR(
          CheckState(entry, functions[g]->Slots(entry.parameter->dtype()), *groups[g].saved[i]));
    }
  }
  return absl::OkStatus();
}

// Sets the options of all groups, or of none.
absl::Status SetAllOptions(LocalOptimizer& local, const OptionsOfGroups& before,
                           const OptionsOfGroups& after) {
  absl::Status status;
  size_t changed = 0;
  for (; changed < after.size() && status.ok(); ++changed)
    status = local.SetOptions(changed, after[changed]);
  if (status.ok()) return status;
  for (size_t g = 0; g < changed; ++g) local.SetOptions(g, before[g]).IgnoreError();
  return status;
}

}  // namespace

absl::Status LoadInto(LocalOptimizer& local, const EntryGroups& parameters,
                      const OptimizerSnapshot& snapshot) {
  PSD_ASSIGN_OR_RETURN(const std::vector<Matched> groups, MatchGroups(local, parameters, snapshot));
  PSD_ASSIGN_OR_RETURN(const OptionsOfGroups before, PresentOptions(local));
  OptionsOfGroups after = before;
  Matched all;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const auto& [name, value] : snapshot.groups[g].options) after[g][name] = value;
    all.entries.insert(all.entries.end(), groups[g].entries.begin(), groups[g].entries.end());
    all.saved.insert(all.saved.end(), groups[g].saved.begin(), groups[g].saved.end());
  }
  PSD_RETURN_IF_ERROR(CheckStates(local, parameters, after, groups));
  PSD_ASSIGN_OR_RETURN(const auto loads, local.PrepareWrite(all.entries, all.saved));
  PSD_RETURN_IF_ERROR(SetAllOptions(local, before, after));
  Counters counters{snapshot.steps, snapshot.loss_scale, snapshot.good_steps};
  if (snapshot.loss_scale == 0) {  // the optimizer that was saved did not scale losses
    counters.loss_scale = local.counters().loss_scale;
    counters.good_steps = local.counters().good_steps;
  }
  return local.Write(loads, counters);
}

}  // namespace psd::zero
