#pragma once

// The implementation of ZeroRedundancyOptimizer. Internal to client/zero/.

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/collectives/parcels.h"
#include "client/ddp/replica.h"
#include "client/zero/local_optimizer.h"
#include "client/zero/shards.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/autograd/variable.h"
#include "core/base/ids.h"
#include "core/optim/parameters/parameter_table.h"
#include "core/optim/steps/step_decision.h"
#include "core/optim/steps/step_request.h"
#include "core/store/store.h"
#include "core/tensor/dtype.h"

namespace psd {

class ZeroRedundancyOptimizer::Impl {
 public:
  Impl(std::shared_ptr<Group> group, const Replica& replica, const ZeroOptions& options)
      : group_(std::move(group)), replica_(replica), options_(options) {}

  absl::Status Begin(const OptimizerSpec& spec, const std::vector<ZeroGroup>& groups);
  absl::Status AddGroup(const ZeroGroup& group);
  absl::Status SetOptions(size_t group, const std::map<std::string, double>& changes);
  // Runs the backward of a step that computes its loss, and averages the gradients if the options
  // say so.
  absl::Status Backward(Context& context, const Variable& loss) const;
  absl::Status Step(const Context& context, const ZeroStepOptions& options);

  absl::Status Consolidate(int to);
  absl::StatusOr<OptimizerSnapshot> State() const;
  absl::Status Load(const OptimizerSnapshot& snapshot);

  const Replica& replica() const { return replica_; }
  Group& group() const { return *group_; }
  zero::LocalOptimizer& local() const { return *local_; }
  const zero::Shards& shards() const { return shards_; }

 private:
  // Returns a group with every option filled in. Errors: those of OptimizerRegistry::Create.
  absl::StatusOr<zero::ShardedGroup> Complete(const OptimizerSpec& spec,
                                              const ZeroGroup& group) const;
  // Errors: INVALID_ARGUMENT naming a parameter that cannot travel in one message.
  absl::Status CheckSizes(const zero::ShardedGroup& group) const;
  absl::StatusOr<zero::Shards> Spread(const std::vector<zero::ShardedGroup>& groups) const;
  // Makes an optimizer over this rank's shard of `groups`, with the state of a new optimizer.
  absl::StatusOr<std::unique_ptr<zero::LocalOptimizer>> MakeLocal(
      const std::vector<zero::ShardedGroup>& groups, const zero::Shards& shards) const;
  // Gives `next` the options, state and counters of the present optimizer. `next` has the same
  // groups, and maybe more.
  absl::Status HandOver(zero::LocalOptimizer& next) const;
  // Waits until all ranks have called it with these groups. Errors: FAILED_PRECONDITION if they
  // give different ones.
  absl::Status Agree(absl::string_view what, const std::vector<zero::ShardedGroup>& groups) const;

  // Returns the parameters of each group, whichever rank steps them.
  zero::EntryGroups GroupEntries() const;

  absl::StatusOr<optim::StepWishes> WishesOf(const ZeroStepOptions& options) const;
  // Returns the options of the calls of one step. The label differs between ranks that would not
  // make the same step, because their wishes, frozen parameters, options or counters differ.
  absl::StatusOr<CollectiveOptions> CallOf(const optim::StepWishes& wishes,
                                           const std::vector<bool>& frozen) const;
  // Steps on all ranks. Returns false, with nothing applied, if the gradients have no finite norm
  // to clip by. An error may leave the ranks with different parameters.
  absl::StatusOr<bool> StepTogether(GlobalId context, const optim::StepWishes& wishes);
  // Decides how gradients are scaled and limited. If that needs the norm, it is the norm of the
  // gradients of all ranks. Returns nothing if the norm to clip by is not finite. All ranks get the
  // same terms, with the bits that one optimizer over all parameters would get.
  absl::StatusOr<std::optional<optim::StepTerms>> Decide(const optim::StepPlan& plan,
                                                         const optim::StepWishes& wishes,
                                                         const CollectiveOptions& call) const;
  // Gives the parameters of each shard to all ranks. `frozen` says which ones stay as they are, by
  // number. If it succeeds on one rank, all ranks have all parameters.
  absl::Status Share(const std::vector<bool>& frozen, const CollectiveOptions& call) const;
  CollectiveOptions Labelled(absl::string_view label) const;

  // A parameter that has state: its group, and its number in the replica.
  struct Stateful {
    size_t group = 0;
    size_t parameter = 0;
  };
  // Returns the parameters of a rank's shard that have state, in the order in which it is sent.
  std::vector<Stateful> StatefulOf(int rank) const;
  // The dtypes of the arrays of state that an optimizer keeps for a parameter of `dtype`, by name.
  absl::StatusOr<std::map<std::string, DType>> SlotsOf(const OptimizerSpec& spec,
                                                       DType dtype) const;
  absl::StatusOr<std::vector<ParameterSnapshot>> ReadOwn() const;
  // Send and receive the state of one rank, until `until`, a time of Clock::Steady().
  absl::Status SendState(int to, absl::Time until) const;
  absl::StatusOr<std::vector<ParameterSnapshot>> ReceiveState(int from, absl::Time until) const;
  // By rank, in the order of StatefulOf.
  using StatesOfRanks = std::vector<std::vector<ParameterSnapshot>>;
  // Brings the state of rank `from` to rank `to`, where it is put into `state`.
  absl::Status Move(int from, int to, absl::Time until,
                    std::vector<ParameterSnapshot>& state) const;
  absl::StatusOr<OptimizerSnapshot> Assemble(StatesOfRanks states) const;
  // Returns the options of a call that concerns the state of `rank`.
  CollectiveOptions StateOfRank(int rank, absl::Duration timeout) const;

  const std::shared_ptr<Group> group_;  // shared with the user
  const Replica replica_;
  const ZeroOptions options_;
  std::vector<store::EntryPtr> entries_;             // those of the replica; shared with the store
  absl::flat_hash_map<GlobalId, size_t> number_of_;  // the place of each of entries_, by its id
  OptimizerSpec spec_;                               // as given to Create
  std::vector<zero::ShardedGroup> groups_;
  zero::Shards shards_;
  std::unique_ptr<zero::LocalOptimizer> local_;
  std::optional<OptimizerSnapshot> snapshot_;  // gathered here, until the next step
  int consolidated_to_ = -1;  // the target of the last Consolidate; -1 before the first one
};

}  // namespace psd
