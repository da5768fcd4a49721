#pragma once

// Averages the gradients of replicas over a group, through a few large buffers instead of one
// all-reduce for each parameter.
//
//   PSD_ASSIGN_OR_RETURN(auto averaging, psd::BufferedAllReduce::Create(group, parameters));
//   PSD_ASSIGN_OR_RETURN(std::vector<psd::Tensor> means, averaging.Mean(gradients));

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
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
};

// All ranks create it with the same parameters and options, and call it equally often. If they
// differ, the calls fail with an error that says so. Thread-compatible.
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
  // expert is this rank's own gradient, or zeros. While some buffers travel, the next ones are
  // filled. Errors: INVALID_ARGUMENT naming the parameter whose gradient has another shape or
  // dtype, or is frozen; then nothing was sent. The errors of Group's calls.
  absl::StatusOr<std::vector<Tensor>> Mean(const std::vector<Tensor>& gradients,
                                           const CollectiveOptions& options = {}) const;

  // The label of the all-reduce of one buffer. Ranks that were created with other parameters or
  // options have other labels, so their calls differ.
  std::string LabelOf(size_t buffer, const CollectiveOptions& options = {}) const;
  // The all-reduces that one Mean makes, in order.
  const std::vector<BufferGroup>& groups() const { return groups_; }

 private:
  BufferedAllReduce(std::shared_ptr<Group> group, std::vector<ReplicatedParameter> parameters,
                    std::vector<BufferGroup> groups, std::string digest);
  absl::Status Check(const std::vector<Tensor>& gradients) const;
  // Waits for the first of `sums`, which is that of `group`, and puts its parts into `means`.
  absl::Status Take(size_t group, std::deque<Future<Tensor>>& sums,
                    std::vector<Tensor>& means) const;
  // Returns the gradients of a group, divided and one after another.
  absl::StatusOr<Tensor> Fill(const BufferGroup& group, const std::vector<Tensor>& gradients) const;

  std::shared_ptr<Group> group_;  // shared with the user
  std::vector<ReplicatedParameter> parameters_;
  std::vector<BufferGroup> groups_;
  std::string digest_;  // of parameters and options
};

}  // namespace psd
