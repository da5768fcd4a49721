#pragma once

// Averages or adds up gradients over a group, through a few large buffers instead of one
// all-reduce for each parameter.
//
//   PSD_ASSIGN_OR_RETURN(auto averaging, psd::BufferedAllReduce::Create(group, parameters));
//   PSD_ASSIGN_OR_RETURN(std::vector<psd::Tensor> means, averaging.Mean(gradients));

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collectives/group.h"
#include "client/ddp/buffer_groups.h"
#include "core/base/future.h"
#include "core/tensor/tensor.h"

namespace psd {

struct BufferedOptions {
  // The size of a buffer in elements. Larger buffers need fewer calls and more memory.
  int64_t buffer_elements = int64_t{1} << 28;
  // If true, buffers are reduced in the order of their first parameters, from the last to the
  // first. A backward completes the gradients of a model's last parameters first, and
  // BufferedDataParallel::Backward sends each buffer as soon as its gradients are complete. The
  // results have the same bits. A buffer should then be much smaller than the model, for example
  // 1 << 20 elements: the last one to be sent has no backward left beside it.
  bool overlap = false;
};

// All ranks create it with the same parameters and options, and call it equally often. Parameters
// may be on different devices on different ranks, but those that share a device on one rank share
// one on all. If the ranks differ, the calls fail with an error that says so. The devices of the
// parameters are those of the group's worker, and outlive this object. Thread-compatible.
class BufferedAllReduce {
 public:
  // Errors: INVALID_ARGUMENT for a parameter that is not floating, or a buffer without elements.
  static absl::StatusOr<BufferedAllReduce> Create(std::shared_ptr<Group> group,
                                                  std::vector<ReplicatedParameter> parameters,
                                                  const BufferedOptions& options = {});

  // Returns the mean of the ranks' gradients for each parameter. `gradients` has one element for
  // each parameter. An undefined one means that this rank has no gradient, and counts as zeros.
  // Each gradient is divided by the number of ranks before the sum, so that a sum of large f16
  // numbers does not overflow. The result for a frozen parameter is undefined. The result for an
  // expert is this rank's own gradient, or zeros. Results are on the devices of their parameters.
  // While some buffers travel, the next ones are filled. Errors: INVALID_ARGUMENT naming the
  // parameter whose gradient has another shape, dtype or device, or is frozen; then nothing was
  // sent. The errors of Group's calls; those of the devices.
  absl::StatusOr<std::vector<Tensor>> Mean(const std::vector<Tensor>& gradients,
                                           const CollectiveOptions& options = {}) const;
  // As Mean, but returns sums: nothing is divided. A missing gradient counts as zeros of a negative
  // sign, which leave every bit of the others' sum as it is.
  absl::StatusOr<std::vector<Tensor>> Sum(const std::vector<Tensor>& gradients,
                                          const CollectiveOptions& options = {}) const;

  // Errors: INVALID_ARGUMENT naming a gradient that Mean and Sum refuse.
  absl::Status Check(const std::vector<Tensor>& gradients) const;

  // One averaging, whose gradients may come one after the other. Thread-compatible. The
  // BufferedAllReduce must outlive it, unless it is only destroyed.
  class Round {
   public:
    // The number of buffers whose all-reduce was started. These are the first ones of groups().
    size_t started() const { return started_; }
    // Takes the sums that are there. Returns whether so many are missing that the next all-reduce
    // should not be started yet. Errors: those of Group's calls.
    absl::StatusOr<bool> IsFull();
    // Starts the all-reduce of the next buffer. `gradients` has one element for each parameter, of
    // which only those of the buffer are used. Requires: started() < groups().size().
    // Errors: RESOURCE_EXHAUSTED and those of Group's calls. Unless started() is 0, the group has
    // failed then.
    absl::Status StartNext(const std::vector<Tensor>& gradients);
    // Starts the all-reduces that are left, waits for all, and returns the means, as Mean does.
    // Errors: as Mean.
    absl::StatusOr<std::vector<Tensor>> Finish(const std::vector<Tensor>& gradients);

   private:
    friend class BufferedAllReduce;
    Round(const BufferedAllReduce* averaging, CollectiveOptions options)
        : averaging_(averaging),
          options_(std::move(options)),
          results_(averaging->parameters_.size()) {}
    // Waits for the oldest of sums_, and puts its parts into results_.
    absl::Status Take();

    const BufferedAllReduce* averaging_;
    CollectiveOptions options_;
    bool mean_ = true;  // otherwise the sum
    size_t started_ = 0;
    std::deque<Future<Tensor>> sums_;  // the last ones that were started
    std::vector<Tensor> results_;      // those that were taken, by parameter
  };
  // Sends nothing. Errors: INVALID_ARGUMENT for a label that is too long.
  absl::StatusOr<Round> Begin(const CollectiveOptions& options = {}) const;

  // The label of the all-reduce of one buffer. Ranks that were created with other parameters or
  // options have other labels, so their calls differ.
  std::string LabelOf(size_t buffer, const CollectiveOptions& options = {}) const;
  // The all-reduces that one Mean makes, in order.
  const std::vector<BufferGroup>& groups() const { return groups_; }

 private:
  BufferedAllReduce(std::shared_ptr<Group> group, std::vector<ReplicatedParameter> parameters,
                    std::vector<BufferGroup> groups, std::string digest);
  // Returns the results for the parameters that no all-reduce brings: this rank's own gradients, or
  // zeros.
  absl::StatusOr<std::vector<Tensor>> OwnResults(const std::vector<Tensor>& gradients) const;
  // Returns this rank's part of the mean or sum for one parameter.
  absl::StatusOr<Tensor> PartOf(size_t parameter, const Tensor& gradient, bool mean) const;
  // Returns the parts of a group, one after another.
  absl::StatusOr<Tensor> Fill(const BufferGroup& group, const std::vector<Tensor>& gradients,
                              bool mean) const;

  std::shared_ptr<Group> group_;  // shared with the user
  std::vector<ReplicatedParameter> parameters_;
  std::vector<BufferGroup> groups_;
  std::string digest_;  // of parameters and options
};

}  // namespace psd
