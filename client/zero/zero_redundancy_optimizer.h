#pragma once

// An optimizer over replicas whose state is spread over the ranks of a group. Each rank steps the
// parameters of its own shard, and then sends them to the others.
//
//   PSD_ASSIGN_OR_RETURN(auto zero,
//                        psd::ZeroRedundancyOptimizer::Create(group, model, psd::Adam{}));
//   for (const Batch& batch : batches) {
//     PSD_ASSIGN_OR_RETURN(psd::Context context, worker->NewContext());
//     PSD_ASSIGN_OR_RETURN(auto parameters, model.Variables(context));
//     PSD_RETURN_IF_ERROR(context.Backward({Loss(parameters, batch)}));
//     PSD_RETURN_IF_ERROR(ddp->AllReduceGradients(context));
//     PSD_RETURN_IF_ERROR(zero->Step(context));
//   }

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collectives/group.h"
#include "client/context.h"
#include "client/ddp/joinable.h"
#include "client/ddp/replica.h"
#include "client/optimizers.h"
#include "client/zero/optimizer_snapshot.h"
#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"

namespace psd {

class BufferedDataParallel;

// Parameters that share options. The options are those of the optimizer's spec, overridden by
// `options`.
struct ZeroGroup {
  std::vector<size_t> parameters;  // their numbers in the replica
  std::map<std::string, double> options;
};

struct ZeroOptions {
  enum class Balance {
    // Ranks get nearly equal numbers of elements. Parameters that require no grad count as well.
    kElements,
    // Ranks get nearly equal amounts of state: parameters that require no grad do not count.
    kState,
  };
  Balance balance = Balance::kElements;
  // Schedule and loss scaling; the mode must be asynchronous, which is the default.
  OptimizerSettings settings;
  // The timeout and the beginning of the labels of the group's calls, of which the functions below
  // make one or several.
  CollectiveOptions call;
  // If it is given, a Step that computes its loss averages the gradients over the ranks by it
  // (BufferedDataParallel::Backward), with BufferedOptions::overlap while backward goes on. It must
  // be of the same group and replica, and must outlive the optimizer.
  BufferedDataParallel* averaging = nullptr;
};

struct ZeroStepOptions {
  // As in StepOptions. The norm is that of the gradients of all ranks' shards together.
  double clip_value = std::numeric_limits<double>::infinity();
  double clip_norm = std::numeric_limits<double>::infinity();
  double loss_scale = 0;
};

// All ranks of the group create it with the same arguments over replicas of the same parameters,
// and make the same calls of the functions that are marked collective. If ranks differ in their
// arguments, options or frozen parameters, or in which parameters share a device, the calls fail on
// all ranks with an error that says so. A parameter's state is on the parameter's device.
// The parameters are spread by zero::MakePartition; a parameter is never split. The ranks step to
// the same bits as one optimizer over all parameters, except with stochastic_rounding.
//
// A call that succeeds on one rank has had its effect on all ranks. If a call fails, the replicas
// may differ: build the group again, give all ranks the same parameters (Replica::Synchronize),
// create the optimizer again and load a snapshot. Thread-compatible.
class ZeroRedundancyOptimizer : public Joinable {
 public:
  // Creates an optimizer over all parameters of the replica, as one group. Collective.
  // Errors: INVALID_ARGUMENT for an unknown or out-of-range option, a group without parameters, a
  // parameter that is given twice or out of range, no parameters at all, an optimizer of tables, a
  // mode that is not asynchronous, a parameter whose elements or state take 4 GiB or more, a label
  // of more than 48 bytes; FAILED_PRECONDITION if the ranks' arguments differ;
  // RESOURCE_EXHAUSTED; the errors of Group's calls.
  static absl::StatusOr<std::unique_ptr<ZeroRedundancyOptimizer>> Create(
      std::shared_ptr<Group> group, const Replica& replica, const OptimizerSpec& spec,
      const ZeroOptions& options = {});
  // Creates an optimizer over groups of the replica's parameters. Collective. Errors: as above.
  static absl::StatusOr<std::unique_ptr<ZeroRedundancyOptimizer>> Create(
      std::shared_ptr<Group> group, const Replica& replica, const OptimizerSpec& spec,
      const std::vector<ZeroGroup>& groups, const ZeroOptions& options = {});
  ~ZeroRedundancyOptimizer() override;

  // Steps the parameters of this rank's shard with the gradients that `context` has on this rank,
  // then gives the parameters of all shards to all ranks. Gradients are not averaged: the gradient
  // of a parameter is that of the rank that has the parameter in its shard. A parameter that has no
  // gradient there, or is frozen now, stays as it is. Afterwards all ranks have equal parameters.
  // Collective. Errors:
  // - FAILED_PRECONDITION for a context that cannot be used, INVALID_ARGUMENT for an option that is
  //   out of range. The call does not count, and the other ranks wait for a correct one.
  // - INVALID_ARGUMENT on all ranks, with nothing applied, if the gradients have no finite norm to
  //   clip by.
  // - The errors of Group's calls. If the step fails on one rank, they say why on the others.
  absl::Status Step(const Context& context, const ZeroStepOptions& options = {});
  // Computes a loss in a new context, runs backward from it and steps. Returns the loss. If `loss`
  // returns an error, there is no step, and the call does not count. The same holds for an error of
  // backward, unless ZeroOptions::averaging is given: then it ends the group, and the other ranks
  // are told why.
  absl::StatusOr<Tensor> Step(
      const std::function<absl::StatusOr<Variable>(const Context& context)>& loss,
      const ZeroStepOptions& options = {});

  // Adds parameters, which begin with the state of a new optimizer. Parameters that were added
  // earlier stay on their ranks. Collective. Errors: as Create; nothing has changed then.
  absl::Status AddGroup(const ZeroGroup& group);

  // Changes options of a group from the next step on. All ranks must make the same change, because
  // each rank steps its shard with its own options; otherwise the next step fails. All ranks accept
  // a change, or all refuse it.
  // Errors: INVALID_ARGUMENT (no such group, unknown or out-of-range option); FAILED_PRECONDITION
  // if the change needs state that was not created (such as momentum above 0 after 0).
  absl::Status SetOptions(size_t group, const std::map<std::string, double>& changes);
  // Returns the present options of a group, with every default filled in.
  absl::StatusOr<OptimizerSpec> Options(size_t group = 0) const;
  // Returns the factor to multiply the next loss by. 1 without loss scaling.
  double LossScale() const;
  // The number of steps so far, without those that were skipped because a scaled loss overflowed.
  uint64_t steps() const;

  // Gathers the state of all ranks on rank `to`, one after the other. Collective. The timeout
  // (ZeroOptions::call) holds for the state of each rank. Errors: INVALID_ARGUMENT for a rank
  // that is out of range; RESOURCE_EXHAUSTED; the errors of Group's calls.
  absl::Status Consolidate(int to);
  // Returns a copy of the state that the last Consolidate has gathered, which is that of a plain
  // optimizer over the same groups.
  // Errors: FAILED_PRECONDITION, naming the call to make, on a rank that was not the target and
  // after later steps; RESOURCE_EXHAUSTED.
  absl::StatusOr<OptimizerSnapshot> State() const;
  // Takes options, counters and the state of this rank's shard from a snapshot, which may come from
  // any number of ranks or from a plain optimizer. All ranks must load the same one. It sends
  // nothing: all ranks accept a snapshot, or all refuse it.
  // Errors: as LoadSnapshot.
  absl::Status Load(const OptimizerSnapshot& snapshot);

  // The rank that has a parameter of the replica in its shard; -1 if no group has it.
  int RankOf(size_t parameter) const;
  // The bytes of optimizer state that this rank has.
  size_t StateBytes() const;

  // Sets the options of the steps that RunUneven makes. `options` is called in every iteration on
  // every rank, also on one that has run out of inputs, after the gradients were computed.
  // LossScale then still returns the factor that losses of this iteration are multiplied by.
  // Without IterateWith the steps have default options. All ranks must call it alike.
  void IterateWith(std::function<ZeroStepOptions()> options);

  Group& group() const override;
  absl::Status Iterate(const Context& context, bool has_input) override;

 private:
  class Impl;
  explicit ZeroRedundancyOptimizer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
  std::function<ZeroStepOptions()> iterate_options_;  // may be empty
};

}  // namespace psd
