#pragma once

// Averages the gradients of replicas over a group, through a few large buffers instead of one
// all-reduce for each parameter.
//
//   PSD_ASSIGN_OR_RETURN(auto averaging, psd::BufferedAllReduce::Create(group, parameters));
//   PSD_ASSIGN_OR_RETURN(std::vector<psd::Tensor> means, averaging.Mean(gradients));

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/collectives/group.h"
#include "client/ddp/buffer_groups.h"
#include "core/tensor/tensor.h"

namespace psd {

struct BufferedOptions {
  // The size of a buffer in elements. Larger ones mean fewer calls, and more memory.
  int64_t buffer_elements = int64_t{1} << 28;
};

// Thread-compatible. All ranks create it with the same parameters and options, and call it as
// often; the calls of the group say so if they differ.
class BufferedAllReduce {
 public:
  // Errors: INVALID_ARGUMENT for a parameter that is not floating, or a buffer without elements.
  static absl::StatusOr<BufferedAllReduce> Create(std::shared_ptr<Group> group,
                                                  std::vector<ReplicatedParameter> parameters,
                                                  const BufferedOptions& options = {});

  // Returns the mean of the ranks' gradients for each parameter. `gradients` has an entry for each
  // parameter, which is undefined if this rank has no gradient for it; that counts as zeros. Each
  // gradient is divided by the number of ranks before the sum, so that a sum of large halves does
  // not overflow. The results of a frozen parameter are undefined; an expert's is its own gradient,
  // or zeros. Only the elements of gradients travel; buffers are on their way while the next are
  // filled.
  // Errors: INVALID_ARGUMENT naming the parameter whose gradient has another shape or dtype, or is
  // frozen; then nothing was sent. The errors of Group's calls.
  absl::StatusOr<std::vector<Tensor>> Mean(const std::vector<Tensor>& gradients,
                                           const CollectiveOptions& options = {}) const;

  // The all-reduces that one Mean makes, in order.
  const std::vector<BufferGroup>& groups() const { return groups_; }

 private:
  BufferedAllReduce(std::shared_ptr<Group> group, std::vector<ReplicatedParameter> parameters,
                    std::vector<BufferGroup> groups);
  absl::Status Check(const std::vector<Tensor>& gradients) const;
  // Returns the gradients of a group, divided and one after another.
  absl::StatusOr<Tensor> Fill(const BufferGroup& group, const std::vector<Tensor>& gradients) const;

  std::shared_ptr<Group> group_;  // shared with the user
  std::vector<ReplicatedParameter> parameters_;
  std::vector<BufferGroup> groups_;
};

}  // namespace psd
