#pragma once

// A trainer of the batch-updating parameter server: a linear model, fitted to a part of the data.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"

namespace psd::examples {

inline constexpr int kTrainers = 2;

// Returns weight [1, 2] and bias [1], all zero.
std::vector<Tensor> InitialModel();

// Points of y = 3 a - 2 b + 1.
struct Points {
  Tensor x;  // f32[count, 2]
  Tensor y;  // f32[count, 1]
};
// Returns the same points for the same seed. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<Points> MakePoints(int64_t count, uint64_t seed);

struct LossAndGradients {
  double loss = 0;
  std::vector<Tensor> gradients;  // of weight and bias
};
// Computes loss and gradients on the trainer, for its own copy of the model.
absl::StatusOr<LossAndGradients> Differentiate(Worker& worker, const std::vector<Tensor>& model,
                                               const Points& points);

// Fetches the model, then sends `steps` gradients. Each is computed from the model in the answer to
// the one before. Returns the loss before each step.
absl::StatusOr<std::vector<double>> TrainOn(Worker& worker, const std::string& server,
                                            const Points& points, int steps);

}  // namespace psd::examples
