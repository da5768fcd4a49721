#include "client/zero/shards.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/collectives/digest.h"
#include "client/zero/partition.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/store/parameter.h"
#include "core/tensor/dtype.h"

namespace psd::zero {
namespace {

int64_t LoadOf(const store::Parameter& parameter, bool by_state) {
  return by_state && !parameter.requires_grad() ? 0 : parameter.shape().NumElements();
}

}  // namespace

absl::Status CheckGroups(const std::vector<ShardedGroup>& groups,
                         const std::vector<store::EntryPtr>& entries,
                         const optim::OptimizerSettings& settings,
                         const optim::OptimizerRegistry& registry) {
  if (groups.empty()) return absl::InvalidArgumentError("an optimizer needs at least one group");
  std::vector<bool> given(entries.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const ShardedGroup& group = groups[g];
    if (group.parameters.empty())
      return absl::InvalidArgumentError(absl::StrCat("group ", g, " has no parameters"));
    for (const size_t index : group.parameters) {
      if (index >= entries.size()) {
        return absl::InvalidArgumentError(absl::StrCat("group ", g, ": parameter ", index,
                                                       " of a replica that has ", entries.size()));
      }
      if (given[index]) {
        return WithRemedy(
            absl::InvalidArgumentError(absl::StrCat("group ", g, ": ", entries[index]->Label(),
                                                    " is given for the second time")),
            "name it once");
      }
      given[index] = true;
    }
  }
  return optim::CheckGroups(SteppedGroups(groups, entries), settings, registry);
}

std::vector<optim::ParameterGroup> SteppedGroups(const std::vector<ShardedGroup>& groups,
                                                 const std::vector<store::EntryPtr>& entries,
                                                 const std::vector<std::vector<size_t>>* only) {
  std::vector<optim::ParameterGroup> stepped;
  for (size_t g = 0; g < groups.size(); ++g) {
    optim::ParameterGroup& group = stepped.emplace_back();
    group.spec = groups[g].spec;
    for (const size_t index : only != nullptr ? (*only)[g] : groups[g].parameters)
      if (entries[index]->parameter->requires_grad()) group.parameters.push_back(entries[index]);
  }
  return stepped;
}

absl::StatusOr<Shards> SpreadGroups(const std::vector<ShardedGroup>& groups,
                                    const std::vector<store::EntryPtr>& entries, int ranks,
                                    bool by_state) {
  std::vector<PartitionGroup> loads;
  for (const ShardedGroup& group : groups) {
    PartitionGroup& each = loads.emplace_back();
    for (const size_t index : group.parameters)
      each.push_back({LoadOf(*entries[index]->parameter, by_state), /*rows=*/1});
  }
  PSD_ASSIGN_OR_RETURN(const Partition partition, MakePartition(loads, ranks));
  Shards shards;
  shards.rank_of.resize(entries.size(), -1);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& of_rank = shards.parameters.emplace_back(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const PartitionPart& part : partition.parts[rank][g]) {
        const size_t index = groups[g].parameters[part.parameter];
        of_rank[g].push_back(index);
        shards.rank_of[index] = rank;
      }
    }
  }
  return shards;
}

std::string DigestOf(const std::vector<ShardedGroup>& groups,
                     const std::vector<store::EntryPtr>& entries, const std::string& rest) {
  Digest digest;
  for (const ShardedGroup& group : groups) {
    digest.Add(absl::StrCat(group.spec.type, ": ", absl::StrJoin(group.parameters, " ")));
    digest.Add(group.spec.options);
  }
  for (const store::EntryPtr& entry : entries) {
    const store::Parameter& parameter = *entry->parameter;
    digest.Add(absl::StrCat(entry->name, " ", DTypeName(parameter.dtype()),
                            parameter.shape().ToString(), " ", parameter.requires_grad()));
  }
  digest.Add(rest);
  return absl::StrCat(groups.size(), " groups over ", entries.size(), " parameters, digest ",
                      digest.Long());
}

}  // namespace psd::zero
