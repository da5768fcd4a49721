#include "core/optim/owner/parameter_groups.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/optim/parameters/stepped_rows.h"
#include "core/store/rows.h"
#include "core/tensor/dtype.h"

namespace psd::optim {
namespace {

absl::Status CheckGroups(const std::vector<ParameterGroup>& groups,
                         const OptimizerSettings& settings) {
  PSD_RETURN_IF_ERROR(settings.Check());
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

absl::StatusOr<ReservedGroups> ReserveGroups(std::vector<ParameterGroup> groups,
                                             const OptimizerSettings& settings,
                                             const OptimizerRegistry& registry,
                                             MemoryAccount& memory) {
  PSD_RETURN_IF_ERROR(CheckGroups(groups, settings));
  ReservedGroups reserved;
  absl::flat_hash_set<GlobalId> seen;
  for (size_t i = 0; i < groups.size(); ++i) {
    PSD_ASSIGN_OR_RETURN(FunctionPtr function, registry.Create(groups[i].spec));
    PSD_RETURN_IF_ERROR(CheckSchedule(settings.schedule, function->spec()));
    std::vector<DType> dtypes;
    for (store::EntryPtr& entry : groups[i].parameters) {
      const std::string label = absl::StrCat(function->spec().type, " for ", entry->Label());
      if (!seen.insert(entry->id).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(label, ": it is among the parameters twice; name it once"));
      }
      const bool rows = store::AsRows(entry->value) != nullptr;
      auto parameter =
          (rows ? NewSteppedRows : NewDenseParameter)(std::move(entry), i, *function, memory);
      if (!parameter.ok()) return Annotate(parameter.status(), label);
      dtypes.push_back((*parameter)->dtype());
      reserved.parameters.push_back(*std::move(parameter));
    }
    reserved.options.Add(std::move(function), std::move(dtypes));
  }
  return reserved;
}

}  // namespace psd::optim
