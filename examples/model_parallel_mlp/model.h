#pragma once

// A perceptron of two layers, each on an owner of its own. Parameters never move: activations go
// from owner to owner by way of the trainer, and gradients the same way back.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"

namespace psd::examples {

struct MlpShape {
  int64_t inputs = 0;
  int64_t hidden = 0;
  int64_t classes = 0;
};

// Thread-compatible. The worker outlives it.
class ModelParallelMlp {
 public:
  // Creates the layers, or attaches to those that another trainer has created.
  static absl::StatusOr<ModelParallelMlp> Create(Worker& worker, const std::string& first_owner,
                                                 const std::string& second_owner,
                                                 const MlpShape& shape, uint64_t seed);

  // The mean cross entropy of x [batch, inputs] against labels [batch], recorded in `context`.
  absl::StatusOr<Variable> Loss(const Tensor& x, const Tensor& labels,
                                const Context& context) const;
  // [batch, classes], outside of any context.
  absl::StatusOr<Tensor> Logits(const Tensor& x) const;

  // Of the first layer, then of the second.
  std::vector<RRef> parameters() const;

 private:
  // y = x * weight^T + bias, on the owner of the two.
  struct Layer {
    std::string owner;
    RRef weight;
    RRef bias;
  };
  ModelParallelMlp(Worker& worker, Layer first, Layer second, Function hidden, Function logits,
                   Function loss);
  static absl::StatusOr<Layer> CreateLayer(Worker& worker, const std::string& owner,
                                           const std::string& name, int64_t inputs, int64_t outputs,
                                           uint64_t seed);
  // Calls a program of (x, weight, bias, further...) where the layer is.
  absl::StatusOr<Variable> Call(const Layer& layer, const Function& function, const Variable& x,
                                const Values& further, const CallOptions& options) const;

  Worker* worker_;
  Layer first_;
  Layer second_;
  Function hidden_;
  Function logits_;
  Function loss_;
};

// One step of training: forward through both owners, backward, and the optimizer's step on each.
// Returns the loss before the step.
absl::StatusOr<double> TrainStep(Worker& worker, const ModelParallelMlp& model,
                                 DistributedOptimizer& optimizer, const Tensor& x,
                                 const Tensor& labels);

}  // namespace psd::examples
