#pragma once

// Decides which rank steps which parameters of a replica. All ranks decide alike, without asking
// each other. Internal to client/zero/.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/optim/owner/parameter_groups.h"
#include "core/store/store.h"

namespace psd::zero {

// A group of parameters as it was created.
struct ShardedGroup {
  optim::OptimizerSpec spec;       // with all options
  std::vector<size_t> parameters;  // their numbers in the replica
};

struct Shards {
  // By rank, then by group: the numbers of the parameters, in the order of the partition.
  std::vector<std::vector<std::vector<size_t>>> parameters;
  std::vector<int> rank_of;  // by parameter; -1 for one that is in no group
};

// Errors: INVALID_ARGUMENT naming the group and the parameter: no groups, a group without
// parameters, a parameter that is given twice or is out of range, and one that the group's
// optimizer cannot step; settings that do not go with it.
absl::Status CheckGroups(const std::vector<ShardedGroup>& groups,
                         const std::vector<store::EntryPtr>& entries,
                         const optim::OptimizerSettings& settings,
                         const optim::OptimizerRegistry& registry);

// Returns the parameters of each group that are stepped. These are all that require grad, or, if
// `only` is given, those of them whose numbers `only` lists for the group.
std::vector<optim::ParameterGroup> SteppedGroups(
    const std::vector<ShardedGroup>& groups, const std::vector<store::EntryPtr>& entries,
    const std::vector<std::vector<size_t>>* only = nullptr);

// Spreads the groups. If `by_state`, parameters that require no grad do not count. Requires:
// CheckGroups is OK. Errors: those of MakePartition.
absl::StatusOr<Shards> SpreadGroups(const std::vector<ShardedGroup>& groups,
                                    const std::vector<store::EntryPtr>& entries, int ranks,
                                    bool by_state);

// Returns a short text that is the same on two ranks if and only if they have equal groups over
// equal parameters, and an equal `rest`.
std::string DigestOf(const std::vector<ShardedGroup>& groups,
                     const std::vector<store::EntryPtr>& entries, const std::string& rest);

}  // namespace psd::zero
