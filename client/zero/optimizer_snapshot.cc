#include "client/zero/optimizer_snapshot.h"

#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/own_optimizer_part.h"
#include "client/zero/load_into.h"
#include "client/zero/local_optimizer.h"
#include "core/base/ids.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rref/rref.h"
#include "core/store/store.h"

namespace psd {
namespace {

// The entries of a plain optimizer's parameters, by group. Errors: FAILED_PRECONDITION naming one
// that is no parameter of the replica.
absl::StatusOr<zero::EntryGroups> EntriesOf(const OwnOptimizerPart& part, const Replica& replica) {
  absl::flat_hash_set<GlobalId> known;
  for (const RRef& value : replica.values()) known.insert(value.value_id());
  zero::EntryGroups groups;
  for (const std::vector<RRef>& group : part.groups) {
    std::vector<store::EntryPtr>& entries = groups.emplace_back();
    for (const RRef& parameter : group) {
      PSD_ASSIGN_OR_RETURN(const store::EntryPtr entry, parameter.local_entry());
      if (!known.contains(entry->id)) {
        return WithRemedy(absl::FailedPreconditionError(
                              absl::StrCat(entry->Label(), " is no parameter of the replica")),
                          "give an optimizer that steps parameters of this replica only");
      }
      entries.push_back(entry);
    }
  }
  return groups;
}

}  // namespace

absl::StatusOr<OptimizerSnapshot> TakeSnapshot(const DistributedOptimizer& optimizer,
                                               const Replica& replica) {
  PSD_ASSIGN_OR_RETURN(const OwnOptimizerPart part, OwnPartOf(optimizer));
  PSD_ASSIGN_OR_RETURN(const auto groups, EntriesOf(part, replica));
  PSD_ASSIGN_OR_RETURN(const auto local,
                       zero::LocalOptimizer::Of(replica.worker(), part.optimizer));
  OptimizerSnapshot snapshot;
  snapshot.type = local->type();
  for (size_t g = 0; g < groups.size(); ++g) {
    GroupSnapshot& group = snapshot.groups.emplace_back();
    PSD_ASSIGN_OR_RETURN(OptimizerSpec spec, local->Options(g));
    group.options = std::move(spec.options);
    PSD_ASSIGN_OR_RETURN(group.parameters, local->Read(groups[g]));
  }
  const zero::Counters counters = local->counters();
  snapshot.steps = counters.steps;
  snapshot.loss_scale = counters.loss_scale;
  snapshot.good_steps = counters.good_steps;
  return snapshot;
}

absl::Status LoadSnapshot(DistributedOptimizer& optimizer, const Replica& replica,
                          const OptimizerSnapshot& snapshot) {
  PSD_ASSIGN_OR_RETURN(const OwnOptimizerPart part, OwnPartOf(optimizer));
  PSD_ASSIGN_OR_RETURN(const auto groups, EntriesOf(part, replica));
  PSD_ASSIGN_OR_RETURN(const auto local,
                       zero::LocalOptimizer::Of(replica.worker(), part.optimizer));
  PSD_RETURN_IF_ERROR(zero::LoadInto(*local, groups, snapshot));
  LossScaleLoaded(optimizer, local->counters().loss_scale);
  return absl::OkStatus();
}

}  // namespace psd
