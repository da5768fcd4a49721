#pragma once

// Data parallelism: every rank computes gradients of its own batch, and they are averaged when the
// trainer says so.
//
//   PSD_ASSIGN_OR_RETURN(auto ddp, psd::BufferedDataParallel::Create(group, model));
//   PSD_ASSIGN_OR_RETURN(psd::Context context, worker->NewContext());
//   for (const Batch& batch : micro_batches) {
//     PSD_ASSIGN_OR_RETURN(auto parameters, model.Variables(context));
//     PSD_RETURN_IF_ERROR(context.Backward({Loss(parameters, batch)}));  // gradients add up
//   }
//   PSD_RETURN_IF_ERROR(ddp->AllReduceGradients(context));
//
// With BufferedOptions::overlap, gradients travel while backward goes on. The last micro-batch, or
// the only one, then runs its backward so:
//
//   PSD_RETURN_IF_ERROR(ddp->Backward(context, {Loss(parameters, batch)}));  // and averages

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collectives/group.h"
#include "client/context.h"
#include "client/ddp/buffered_all_reduce.h"
#include "client/ddp/joinable.h"
#include "client/ddp/replica.h"
#include "core/autograd/variable.h"
#include "core/dist_autograd/backward_options.h"
#include "core/tensor/tensor.h"

namespace psd {

struct AllReduceOptions {
  // Timeout and label of the calls.
  CollectiveOptions call;
  // The number of samples whose gradients this rank has summed. If it is given, the result is the
  // sum of the ranks' gradients divided by the number of samples of all ranks, where 0 counts as 1.
  // If it is not given, the result is the mean over the ranks. All ranks must give it, or none.
  std::optional<double> samples;
};

// Averages the gradients of a replica over a group. All ranks create it with the same parameters
// and options, and make the same calls. Creating it sends nothing, so replicas that differ stay
// different (see Replica::Synchronize). Thread-compatible.
class BufferedDataParallel : public Joinable {
 public:
  // While a scope lives, AllReduceGradients of its BufferedDataParallel does nothing. Scopes may be
  // nested. A scope ends when its block is left, also by an error. It must not outlive the
  // BufferedDataParallel.
  class [[nodiscard]] NoSyncScope {
   public:
    ~NoSyncScope() {
      if (depth_ != nullptr) --*depth_;
    }
    NoSyncScope(NoSyncScope&& other) noexcept : depth_(std::exchange(other.depth_, nullptr)) {}
    NoSyncScope& operator=(NoSyncScope&&) = delete;

   private:
    friend class BufferedDataParallel;
    explicit NoSyncScope(int* depth) : depth_(depth) { ++*depth_; }
    int* depth_;  // null if the scope was moved from
  };

  // Errors: INVALID_ARGUMENT for a buffer without elements.
  static absl::StatusOr<std::unique_ptr<BufferedDataParallel>> Create(
      std::shared_ptr<Group> group, const Replica& replica, const BufferedOptions& options = {});

  // Replaces the gradients that `context` has collected for the replica's parameters by their means
  // over the ranks (see BufferedAllReduce::Mean for the order of the arithmetic, missing gradients
  // and experts; AllReduceOptions::samples for another divisor). Sparse gradients become dense.
  // Parameters that are frozen keep what they have. Does nothing within a NoSyncScope.
  // After an error the gradients of the context are as before. Errors:
  // - FAILED_PRECONDITION for a context that cannot be used, INVALID_ARGUMENT for a number of
  //   samples that is negative or not finite, RESOURCE_EXHAUSTED before anything is sent. The call
  //   does not count, and the other ranks wait for a right one.
  // - FAILED_PRECONDITION if a backward adds gradients meanwhile, RESOURCE_EXHAUSTED later, and the
  //   errors of Group's calls. The group has failed then, and the other ranks are told why.
  absl::Status AllReduceGradients(const Context& context, const AllReduceOptions& options = {});

  // Runs Context::Backward and then AllReduceGradients. With BufferedOptions::overlap it does both
  // at the same time: a buffer leaves as soon as its gradients and those of the buffers before it
  // are complete. The result has the same bits, and ranks may mix this call with Context::Backward
  // and AllReduceGradients. Gradients that the context has collected before are part of the means,
  // so of several micro-batches only the last one is run by this function. The gradient of a
  // parameter that is used in several ways (fetched twice, also looked up by rows, or used by
  // another worker) leaves when the backward has ended. Within a NoSyncScope this function is
  // Context::Backward alone.
  // Requires: no other backward runs over the same variables. The timeout of the calls is longer
  // than a backward takes.
  // Errors, after which the context has only gradients of this rank, maybe without this backward's:
  // - FAILED_PRECONDITION for a context that cannot be used, INVALID_ARGUMENT for wrong options of
  //   the average. The call does not count, and the other ranks wait for a right one.
  // - Those of Context::Backward and of AllReduceGradients; FAILED_PRECONDITION if a gradient from
  //   elsewhere comes after the parameter's own has left. The group has failed then. The other
  //   ranks are told why, at the latest in their next call.
  absl::Status Backward(Context& context, const std::vector<Variable>& roots,
                        const dist_autograd::BackwardOptions& backward = {},
                        const AllReduceOptions& options = {});

  // Returns a scope for micro-batches whose gradients add up in the context before they are
  // averaged.
  NoSyncScope NoSync() { return NoSyncScope(&no_sync_depth_); }

  // The all-reduces that one AllReduceGradients or Backward makes, in order.
  absl::StatusOr<std::vector<BufferGroup>> Buffers();
  const Replica& replica() const { return replica_; }

  // Sets the options of the averages that RunUneven makes. `options` is called in every iteration
  // on every rank, after the gradients were computed. If it gives a number of samples, that of a
  // rank that has run out of inputs counts as 0. Without IterateWith the averages have default
  // options. All ranks must call it alike.
  void IterateWith(std::function<AllReduceOptions()> options) {
    iterate_options_ = std::move(options);
  }

  Group& group() const override { return *group_; }
  absl::Status Iterate(const Context& context, bool has_input) override;

 private:
  BufferedDataParallel(std::shared_ptr<Group> group, const Replica& replica,
                       const BufferedOptions& options)
      : group_(std::move(group)), replica_(replica), options_(options) {}
  // Plans the buffers again if parameters were frozen or thawed since the last time.
  absl::Status Plan();
  // Checks options and plans the buffers, before anything is sent.
  absl::StatusOr<BufferedAllReduce::Round> Begin(const AllReduceOptions& options);
  absl::Status BackwardOverlapped(Context& context, const std::vector<Variable>& roots,
                                  const dist_autograd::BackwardOptions& backward,
                                  const AllReduceOptions& options, BufferedAllReduce::Round round);
  // Checks that the context has the gradients that have left for the first `buffers` buffers.
  absl::Status CheckSent(size_t buffers, const std::vector<Tensor>& sent,
                         const std::vector<Tensor>& collected) const;
  // Waits for the means of `collected`, and puts them in its place.
  absl::Status Finish(BufferedAllReduce::Round round, const Replica::Collected& collected,
                      const AllReduceOptions& options) const;
  // Turns means over the ranks into sums over the ranks, divided by the number of all samples.
  absl::Status ScaleBySamples(std::vector<Tensor>& means, double samples,
                              const CollectiveOptions& call) const;

  const std::shared_ptr<Group> group_;  // shared with the user
  const Replica replica_;
  const BufferedOptions options_;
  std::vector<bool> planned_for_;  // which parameters require grad, by index
  std::optional<BufferedAllReduce> averaging_;
  int no_sync_depth_ = 0;
  std::function<AllReduceOptions()> iterate_options_;  // may be empty
};

}  // namespace psd
