#include "core/optim/owner/parameter_groups.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/optim/parameters/stepped_rows.h"
#include "core/store/rows.h"
#include "core/tensor/dtype.h"

namespace psd::optim {
namespace {

std::string LabelOf(const FunctionalOptimizer& function, const store::Entry& entry) {
  return absl::StrCat(function.spec().type, " for ", entry.Label());
}

absl::Status CheckTypes(const std::vector<ParameterGroup>& groups) {
  if (groups.empty()) return absl::InvalidArgumentError("an optimizer has at least one group");
  for (const ParameterGroup& group : groups) {
    if (group.spec.type == groups[0].spec.type) continue;
    return absl::InvalidArgumentError(absl::StrCat("groups of ", groups[0].spec.type, " and ",
                                                   group.spec.type,
                                                   ": one optimizer has one type"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGroups(const std::vector<ParameterGroup>& groups,
                         const OptimizerSettings& settings, const OptimizerRegistry& registry) {
  PSD_RETURN_IF_ERROR(settings.Check());
  PSD_RETURN_IF_ERROR(CheckTypes(groups));
  absl::flat_hash_set<GlobalId> seen;
  for (const ParameterGroup& group : groups) {
    PSD_ASSIGN_OR_RETURN(const FunctionPtr function, registry.Create(group.spec));
    PSD_RETURN_IF_ERROR(CheckSchedule(settings.schedule, function->spec()));
    for (const store::EntryPtr& entry : group.parameters) {
      const std::string label = LabelOf(*function, *entry);
      if (!seen.insert(entry->id).second) {
        return WithRemedy(
            absl::InvalidArgumentError(absl::StrCat(label, ": it is among the parameters twice")),
            "name it once");
      }
      const bool rows = store::AsRows(entry->value) != nullptr;
      PSD_RETURN_IF_ERROR(
          Annotate((rows ? CheckSteppedRows : CheckDenseParameter)(*entry, *function), label));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ReservedGroups> ReserveGroups(std::vector<ParameterGroup> groups,
                                             const OptimizerSettings& settings,
                                             const OptimizerRegistry& registry,
                                             MemoryAccount& memory) {
  PSD_RETURN_IF_ERROR(CheckGroups(groups, settings, registry));
  ReservedGroups reserved;
  for (size_t i = 0; i < groups.size(); ++i) {
    PSD_ASSIGN_OR_RETURN(FunctionPtr function, registry.Create(groups[i].spec));
    std::vector<DType> dtypes;
    for (store::EntryPtr& entry : groups[i].parameters) {
      const std::string label = LabelOf(*function, *entry);
      const bool rows = store::AsRows(entry->value) != nullptr;
      auto parameter = rows ? NewSteppedRows(std::move(entry), i, *function, memory)
                            : NewDenseParameter(std::move(entry), i, *function);
      if (!parameter.ok()) return Annotate(parameter.status(), label);
      dtypes.push_back((*parameter)->dtype());
      reserved.parameters.push_back(*std::move(parameter));
    }
    reserved.options.Add(std::move(function), std::move(dtypes));
  }
  return reserved;
}

}  // namespace psd::optim
