#pragma once

// Wide and deep (Cheng et al., "Wide & deep learning for recommender systems", 2016): a linear
// model over all ids beside a perceptron over their embeddings and the numbers. Embeddings live on
// the owners as rows. The layers of the perceptron live there as parameters (WideDeepModel), or
// every trainer has a replica of them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "examples/wide_deep_adult/dataset.h"

namespace psd::examples {

inline constexpr int64_t kEmbeddingWidth = 8;

// Returns references to all tables, one per field and then the wide one, and creates those that do
// not exist yet. They are spread over the owners by rules that depend only on the owners' names, so
// trainers need not agree on them. Their seeds are the kFields + 1 numbers after `seed`.
absl::StatusOr<std::vector<RRef>> AttachTables(Worker& worker, std::vector<std::string> owners,
                                               const AdultDataset& dataset, uint64_t seed);

// A parameter of a layer, for example "adult/layer1/weight" of f32[64, 109].
struct LayerParameter {
  std::string name;
  Shape shape;
  double bound = 0;  // its initial elements are uniform in [-bound, bound)
};
// Returns the weight and the bias of each layer.
std::vector<LayerParameter> LayerParameters();

// Looks the rows of a batch up and computes the logits f32[n, 2] from them and from `layers`, which
// are in the order of LayerParameters. In a context, the gradients of the rows go to the owners.
absl::StatusOr<Variable> ComputeLogits(Worker& worker, const std::vector<RRef>& tables,
                                       const std::vector<Variable>& layers, const AdultBatch& batch,
                                       const CallOptions& options);

// The whole model on the owners.
class WideDeepModel {
 public:
  // Returns references to all tables and layers, and creates those that do not exist yet. They are
  // spread over the owners by rules that depend only on the owners' names, so trainers need not
  // agree on them.
  static absl::StatusOr<WideDeepModel> Attach(Worker& worker, std::vector<std::string> owners,
                                              const AdultDataset& dataset, uint64_t seed);

  // Returns the logits f32[n, 2] of a batch. In a context, their gradients go back to the owners.
  absl::StatusOr<Variable> Forward(Worker& worker, const AdultBatch& batch,
                                   const CallOptions& options) const;

  const std::vector<RRef>& tables() const { return tables_; }  // as AttachTables
  const std::vector<RRef>& layers() const { return layers_; }  // as LayerParameters

 private:
  std::vector<RRef> tables_;
  std::vector<RRef> layers_;
};

// The model's optimizers: Adam for the layers, row-wise Adagrad for the tables. All trainers share
// them.
struct WideDeepOptimizers {
  std::unique_ptr<DistributedOptimizer> layers;
  std::unique_ptr<DistributedOptimizer> tables;
};
absl::StatusOr<WideDeepOptimizers> CreateOptimizers(Worker& worker, const WideDeepModel& model,
                                                    double lr, double table_lr,
                                                    const JoinOptions& join = {});

// Looks rows up, computes the loss and the gradients, and steps both optimizers. Returns the loss.
absl::StatusOr<double> TrainStep(Worker& worker, const WideDeepModel& model,
                                 const WideDeepOptimizers& optimizers, const AdultBatch& batch);

// Returns how many of the people with these labels the logits classify correctly.
int64_t CountCorrect(const Tensor& logits, const Tensor& labels);

}  // namespace psd::examples
