#pragma once

// A perceptron of two layers, each on its own owner. Parameters do not move: activations go from
// owner to owner through the trainer, and gradients go back the same way.

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

  // Returns the mean cross entropy of x [batch, inputs] against labels [batch], recorded in
  // `context`.
  absl::StatusOr<Variable> Loss(const Tensor& x, const Tensor& labels,
                                const Context& context) const;
  // Returns the logits [batch, classes], computed outside of any context.
  absl::StatusOr<Tensor> Logits(const Tensor& x) const;

  // Returns the parameters of the first layer, then those of the second.
  std::vector<RRef> parameters() const;

 private:
  // Computes y = x * weight^T + bias on the owner of weight and bias.
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
  // Calls a program with (x, weight, bias, further...) on the layer's owner.
  absl::StatusOr<Variable> Call(const Layer& layer, const Function& function, const Variable& x,
                                const Values& further, const CallOptions& options) const;

  Worker* worker_;
  Layer first_;
  Layer second_;
  Function hidden_;
  Function logits_;
  Function loss_;
};

// Takes one step of training: forward through both owners, backward, and the optimizer's step on
// each owner. Returns the loss before the step.
absl::StatusOr<double> TrainStep(Worker& worker, const ModelParallelMlp& model,
                                 DistributedOptimizer& optimizer, const Tensor& x,
                                 const Tensor& labels);

}  // namespace psd::examples
