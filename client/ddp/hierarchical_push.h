#pragma once

// Hierarchical push: the trainers of one host add up their gradients among themselves, and one of
// them pushes the sums and steps for all. For optimizers with a synchronous mode. With k trainers
// on a host, the owners receive a k-th of the gradients.
//
//   psd::OptimizerSettings settings;
//   settings.mode = psd::UpdateMode::Synchronous(8);  // 8 trainers, 4 on each of two hosts
//   PSD_ASSIGN_OR_RETURN(auto optimizer, psd::DistributedOptimizer::Create(
//                                            *worker, "main", psd::Adam{}, parameters, settings));
//   psd::GroupOptions of_host;
//   of_host.members = {"host0-0", "host0-1", "host0-2", "host0-3"};
//   PSD_ASSIGN_OR_RETURN(auto group, psd::Group::Join(*worker, "host0", of_host));
//   PSD_ASSIGN_OR_RETURN(auto push,
//                        psd::HierarchicalPush::Create(*worker, group, *optimizer, parameters));
//   for (const Batch& batch : batches) {
//     PSD_ASSIGN_OR_RETURN(psd::Context context, worker->NewContext());
//     PSD_ASSIGN_OR_RETURN(auto variables, push->Variables(context));
//     PSD_RETURN_IF_ERROR(context.Backward({Loss(variables, batch)}));
//     if (absl::Status stepped = push->Step(context); !stepped.ok()) {
//       if (group->status().ok()) return stepped;
//       // A trainer of this host died. The others go on, with new gradients.
//       PSD_ASSIGN_OR_RETURN(group, group->Rebuild(*worker));
//       PSD_ASSIGN_OR_RETURN(push,
//                            psd::HierarchicalPush::Create(*worker, group, *optimizer,
//                            parameters));
//     }
//   }

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/collectives/group.h"
#include "client/context.h"
#include "client/ddp/buffered_all_reduce.h"
#include "client/ddp/joinable.h"
#include "client/ddp/push_outcome.h"
#include "client/optimizers.h"
#include "client/worker.h"
#include "core/autograd/read_version.h"
#include "core/autograd/variable.h"
#include "core/dist_autograd/leaf_gradients.h"
#include "core/rref/rref.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"

namespace psd::dist_autograd {
class ContextState;
}  // namespace psd::dist_autograd

namespace psd {

struct HierarchicalOptions {
  // The timeout and the beginning of the labels of the collective calls, except for the last call
  // of a step, in which the other ranks wait for the pusher.
  CollectiveOptions call;
  // The buffers in which gradients travel between the ranks. See BufferedAllReduce.
  BufferedOptions buffers;
  // StepOptions::timeout of steps that set none. Also the most time that a step waits for seats
  // that other trainers have, such as those of a pusher that died. The other ranks wait for the
  // outcome for at most six times the timeout of the step. Must be positive and finite.
  absl::Duration step_timeout = absl::Seconds(60);
};

// A rank's part in the common steps of a group of trainers. All ranks create it with the same
// parameters and options, each with its own handle of the same named optimizer, and all of them
// make the same calls of Step. The pusher is rank 0 of the group: it takes size() seats of each
// round (StepOptions::seats). The result has the bits of an owner that adds up the gradients of
// each group in the order of the ranks, and then the sums of the groups in the order of the
// pushers' names; NCCL adds up the gradients of a group in another order (see Group). A mean is
// over all trainers of the round.
//
// Only dense gradients are pushed. Tables (CreateOptions::rows) need an optimizer of their own,
// which every trainer steps itself: rows travel to their owner in Backward, whoever steps.
//
// The pusher needs the right to write the parameters, which a trainer that steps for itself does
// not need. Any rank may become the pusher, so all of them should have that right; otherwise the
// first step after a death fails with PERMISSION_DENIED.
//
// Faults: a gradient is applied at most once, because a context can be stepped only once by objects
// that have a parameter in common. If a rank dies, Step fails on all ranks with an error that names
// it. The survivors build the group again, keep their optimizers, create a new HierarchicalPush,
// and compute new gradients. So do all ranks when a trainer was started again and joins them. The
// rank that is then rank 0 pushes for the ranks of the new group, as soon as the owners have
// noticed the death of the former pusher, whose seats are then empty. A former pusher that is not
// rank 0 any more gives its seats back in Create. (A rank that was left out although it lives gives
// its seats back when it destroys its optimizer.) If the pusher died while it pushed, or could not
// tell all ranks the outcome, the step may have been applied; all errors say so
// (ErrorDetail::fate_unknown). If a step is refused, all ranks get the same error, and the group
// stays as it is.
//
// Rounds wait for seats that nobody has taken yet, because trainers may still be starting. If a
// rank dies before the first push of its group, its seat is such a seat: all steps fail with
// DEADLINE_EXCEEDED until the trainer is started again and the group is built with it, or another
// trainer steps for the seat.
//
// Thread-compatible. The worker and the optimizer must outlive it.
class HierarchicalPush : public Joinable {
 public:
  // Fetches the parameters once, to learn their shapes. A group of one is allowed. If the optimizer
  // scales losses, rank 0 asks its owners for the present scale and tells the other ranks.
  // Errors: INVALID_ARGUMENT (no parameters, one that is given twice, one that this worker owns,
  // one that is no parameter, such as a table, or is not floating; a timeout that is not positive
  // and finite; a label that is too long); those of Worker::Pull. With loss scaling, also the
  // errors of a call to the owners, the same on all ranks, and those of Group's calls.
  static absl::StatusOr<std::unique_ptr<HierarchicalPush>> Create(
      Worker& worker, std::shared_ptr<Group> group, DistributedOptimizer& optimizer,
      const std::vector<RRef>& parameters, const HierarchicalOptions& options = {});

  // Fetches the parameters, in their order, as leaves whose gradients `context` keeps in this
  // process, so that Backward sends nothing. A parameter of f16 or bf16 comes as f32; the sum of
  // its gradients over the group is made in f32 and rounded once, before it is pushed. Errors:
  // those of Worker::Pull; FAILED_PRECONDITION for a context that cannot be used.
  absl::StatusOr<std::vector<Variable>> Variables(const Context& context);

  // Adds up the gradients that the contexts of all ranks have collected for their Variables, pushes
  // the sums and steps. Returns on all ranks when the owners have applied the step, with the same
  // result. Gradients that a context has collected on an owner, because a parameter was fetched by
  // Worker::ToHere, are not part of the step. A parameter without a gradient on any rank stays
  // untouched. All ranks give the same options; `seats` is set by this function.
  //
  // Errors: FAILED_PRECONDITION for a context that was stepped before, or that another thread
  // steps, by an object that has one of the parameters, or that cannot be used; INVALID_ARGUMENT
  // for a gradient that is sparse or has another shape or dtype than its Variable, or for a timeout
  // that is not positive and finite. The other ranks are told FAILED_PRECONDITION naming this rank,
  // and nothing is pushed; their contexts may be stepped again. The errors of
  // Group's calls, after which the group has failed. Those of DistributedOptimizer::Step.
  absl::Status Step(const Context& context, const StepOptions& options = {});

  // Sets the options of the steps that RunUneven makes. `options` is called in every iteration on
  // every rank, also on one that has run out of inputs, after the gradients were computed.
  // LossScale then still returns the factor that losses of this iteration are multiplied by.
  // Without IterateWith the steps have default options. All ranks must call it alike.
  void IterateWith(std::function<StepOptions()> options) { iterate_options_ = std::move(options); }
  // A rank that has run out of inputs counts as one without gradients, and keeps its seat.
  absl::Status Iterate(const Context& context, bool has_input) override;

  // Returns the factor to multiply the next loss by, the same on all ranks. 1 without loss scaling.
  double LossScale() const { return loss_scale_; }
  Group& group() const override { return *group_; }

 private:
  // The gradients of this rank's context. One that is missing is undefined.
  struct Collected {
    std::shared_ptr<dist_autograd::ContextState> context;  // shared with the user's handle
    std::vector<dist_autograd::LeafGradient> leaves;       // the parameters' keys
    std::vector<Tensor> gradients;
    std::vector<ReadVersion> versions;
  };
  // The gradients of all ranks together, by parameter.
  struct Agreed {
    std::vector<bool> present;          // whether a rank has a gradient
    std::vector<ReadVersion> versions;  // that the gradients were computed from
  };

  HierarchicalPush(Worker& worker, std::shared_ptr<Group> group, DistributedOptimizer& optimizer,
                   std::vector<RRef> parameters, std::vector<DType> dtypes,
                   HierarchicalOptions options, BufferedAllReduce sums)
      : worker_(worker),
        group_(std::move(group)),
        optimizer_(optimizer),
        parameters_(std::move(parameters)),
        dtypes_(std::move(dtypes)),
        options_(std::move(options)),
        sums_(std::move(sums)) {}

  // Gives the seats of a former pusher back, and agrees with the other ranks on the loss scale.
  absl::Status Begin();
  absl::StatusOr<Collected> Collect(const Context& context, absl::Duration timeout);
  // The options of a step's first call, whose label says what all ranks must have alike.
  CollectiveOptions FirstCall(const StepOptions& options) const;
  // Tells the other ranks what this rank has, or that it cannot step.
  absl::StatusOr<Agreed> Agree(const absl::StatusOr<Collected>& own, const StepOptions& options);
  // Pushes the sums and steps for all ranks.
  PushOutcome Push(const Agreed& agreed, const std::vector<Tensor>& sums,
                   const StepOptions& options);
  absl::Status PushGradients(const Context& context, const Agreed& agreed,
                             const std::vector<Tensor>& sums, absl::Duration timeout);
  StepOutcome StepForAll(const Context& context, const StepOptions& options);
  // Gives the pusher's outcome of `what` to all ranks. `own` is used on the pusher.
  absl::StatusOr<PushOutcome> Share(const PushOutcome& own, const std::string& what,
                                    absl::Duration timeout);
  bool IsPusher() const { return group_->rank() == 0; }

  Worker& worker_;
  const std::shared_ptr<Group> group_;  // shared with the user
  DistributedOptimizer& optimizer_;
  const std::vector<RRef> parameters_;
  const std::vector<DType> dtypes_;  // of the parameters on their owners
  const HierarchicalOptions options_;
  const BufferedAllReduce sums_;
  double loss_scale_ = 1;                         // as the pusher told it last
  std::function<StepOptions()> iterate_options_;  // may be empty
};

}  // namespace psd
