#pragma once

// Checks the parameter groups from which an optimizer is created, and reserves their memory.

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/memory_budget.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/options/option_groups.h"
#include "core/optim/parameters/stepped_parameter.h"
#include "core/store/store.h"

namespace psd::optim {

// Parameters that are stepped with the same options.
struct ParameterGroup {
  OptimizerSpec spec;
  std::vector<store::EntryPtr> parameters;
};

struct ReservedGroups {
  OptionGroups options;
  std::vector<std::unique_ptr<SteppedParameter>> parameters;  // those of all groups
};

// Makes the same checks as ReserveGroups, and reserves nothing. Errors: those of ReserveGroups,
// except RESOURCE_EXHAUSTED.
absl::Status CheckGroups(const std::vector<ParameterGroup>& groups,
                         const OptimizerSettings& settings, const OptimizerRegistry& registry);

// Errors: those of OwnerOptimizer::Create. After an error nothing is reserved.
absl::StatusOr<ReservedGroups> ReserveGroups(std::vector<ParameterGroup> groups,
                                             const OptimizerSettings& settings,
                                             const OptimizerRegistry& registry,
                                             MemoryAccount& memory);

}  // namespace psd::optim
