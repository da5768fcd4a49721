#pragma once

// Wide and deep (Cheng et al., "Wide & deep learning for recommender systems", 2016): a linear
// model over all ids beside a perceptron over their embeddings and the numbers. Everything lives on
// the owners: embeddings as rows, layers as parameters.

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
  // References to everything; what is not there yet is created, spread over the owners by rules
  // that depend on their names only, so that trainers need not talk.
  static absl::StatusOr<WideDeepModel> Attach(Worker& worker, std::vector<std::string> owners,
                                              const AdultDataset& dataset, uint64_t seed);

  // Logits f32[n, 2] of a batch; in a context they lead back to the owners.
  absl::StatusOr<Variable> Forward(Worker& worker, const AdultBatch& batch,
                                   const CallOptions& options) const;

  const std::vector<RRef>& tables() const { return tables_; }  // one per field, then the wide one
  const std::vector<RRef>& layers() const { return layers_; }  // weight, bias of each

 private:
  std::vector<RRef> tables_;
  std::vector<RRef> layers_;
};

// The model's optimizers: Adam for the layers, row-wise Adagrad for the tables. Shared by all
// trainers.
struct WideDeepOptimizers {
  std::unique_ptr<DistributedOptimizer> layers;
  std::unique_ptr<DistributedOptimizer> tables;
};
absl::StatusOr<WideDeepOptimizers> CreateOptimizers(Worker& worker, const WideDeepModel& model,
                                                    double lr, double table_lr,
                                                    const JoinOptions& join = {});

// Looks up, computes the loss (which it returns) and gradients, and steps both optimizers.
absl::StatusOr<double> TrainStep(Worker& worker, const WideDeepModel& model,
                                 const WideDeepOptimizers& optimizers, const AdultBatch& batch);

// The share of a test batch that the model gets right, times its size.
absl::StatusOr<int64_t> CountCorrect(Worker& worker, const WideDeepModel& model,
                                     const AdultBatch& batch);

}  // namespace psd::examples
