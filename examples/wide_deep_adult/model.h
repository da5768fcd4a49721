#pragma once

// Wide and deep (Cheng et al., "Wide & deep learning for recommender systems", 2016): a linear
// model over all ids beside a perceptron over their embeddings and the numbers. The whole model
// lives on the owners, embeddings as rows and layers as parameters.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "examples/wide_deep_adult/dataset.h"

namespace psd::examples {

inline constexpr int64_t kEmbeddingWidth = 8;

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

  const std::vector<RRef>& tables() const { return tables_; }  // one per field, then the wide one
  const std::vector<RRef>& layers() const { return layers_; }  // weight, bias of each

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

// Returns the number of people in a test batch that the model classifies correctly.
absl::StatusOr<int64_t> CountCorrect(Worker& worker, const WideDeepModel& model,
                                     const AdultBatch& batch);

}  // namespace psd::examples
