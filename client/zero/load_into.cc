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

absl::Status CheckGroups(const LocalOptimizer& local, const EntryGroups& parameters,
                         const OptimizerSnapshot& snapshot) {
  if (snapshot.type != local.type())
    return Differs(absl::StrCat(Quoted(snapshot.type), ", not ", Quoted(local.type())));
  if (snapshot.groups.size() != parameters.size()) {
    return Differs(
        absl::StrCat("it has ", snapshot.groups.size(), " groups, not ", parameters.size()));
  }
  if (!(snapshot.loss_scale >= 0 && std::isfinite(snapshot.loss_scale)))
    return Differs(absl::StrCat("its loss scale is ", snapshot.loss_scale));
  for (size_t g = 0; g < parameters.size(); ++g) {
    const std::vector<ParameterSnapshot>& saved = snapshot.groups[g].parameters;
    if (saved.size() != parameters[g].size()) {
      return Differs(absl::StrCat("group ", g, " has ", saved.size(), " parameters, not ",
                                  parameters[g].size()));
    }
    for (size_t i = 0; i < saved.size(); ++i)
      PSD_RETURN_IF_ERROR(CheckParameter(*parameters[g][i], saved[i]));
  }
  return absl::OkStatus();
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
                         const OptionsOfGroups& options, const OptimizerSnapshot& snapshot) {
  PSD_ASSIGN_OR_RETURN(const optim::GroupFunctions functions,
                       local.FunctionsWith(options, parameters));
  for (size_t g = 0; g < parameters.size(); ++g) {
    for (size_t i = 0; i < parameters[g].size(); ++i) {
      const store::Entry& entry = *parameters[g][i];
      if (!entry.parameter->requires_grad()) continue;
      PSD_RETURN_IF_ERROR(CheckState(entry, functions[g]->Slots(entry.parameter->dtype()),
                                     snapshot.groups[g].parameters[i]));
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
  PSD_RETURN_IF_ERROR(CheckGroups(local, parameters, snapshot));
  PSD_ASSIGN_OR_RETURN(const OptionsOfGroups before, PresentOptions(local));
  OptionsOfGroups after = before;
  std::vector<store::EntryPtr> entries;
  std::vector<const ParameterSnapshot*> saved;
  for (size_t g = 0; g < parameters.size(); ++g) {
    for (const auto& [name, value] : snapshot.groups[g].options) after[g][name] = value;
    entries.insert(entries.end(), parameters[g].begin(), parameters[g].end());
    for (const ParameterSnapshot& each : snapshot.groups[g].parameters) saved.push_back(&each);
  }
  PSD_RETURN_IF_ERROR(CheckStates(local, parameters, after, snapshot));
  PSD_ASSIGN_OR_RETURN(const auto loads, local.PrepareWrite(entries, saved));
  PSD_RETURN_IF_ERROR(SetAllOptions(local, before, after));
  Counters counters{snapshot.steps, snapshot.loss_scale, snapshot.good_steps};
  if (snapshot.loss_scale == 0) {  // the optimizer that was saved did not scale losses
    counters.loss_scale = local.counters().loss_scale;
    counters.good_steps = local.counters().good_steps;
  }
  return local.Write(loads, counters);
}

}  // namespace psd::zero
