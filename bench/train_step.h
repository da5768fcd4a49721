#pragma once

// The train step of the step_* and trainers_* cases: pull all parameters, compute LinearLoss,
// backward, step.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/psd.h"

namespace psd::bench {

struct StepShape {
  int tensors = 0;
  int64_t elements = 0;  // of each parameter
  int optimizers = 1;    // among which the parameters are divided
  int used = 0;          // a step uses the first so many parameters; 0: all
};

inline constexpr StepShape kDenseStep = {16, 1'000'000};
inline constexpr StepShape kSmallStep = {1000, 256};

// loss = 0.5 * sum of p * c. Every parameter p has its own coefficients c, so that no gradient is
// an alias of another.
class LinearLoss {
 public:
  // For `tensors` parameters of `elements` floats.
  static absl::StatusOr<LinearLoss> Create(size_t tensors, int64_t elements);
  Variable Of(const std::vector<Variable>& parameters) const;

 private:
  std::vector<Variable> coefficients_;
};

// Thread-compatible.
class TrainStep {
 public:
  // Creates the parameters or attaches to them, and named optimizers over them. All names begin
  // with `name`.
  static absl::StatusOr<std::unique_ptr<TrainStep>> Create(Worker& worker, const StepShape& shape,
                                                           const OptimizerSpec& spec,
                                                           const std::string& name = "step");
  absl::Status Run();

 private:
  explicit TrainStep(Worker& worker) : worker_(worker) {}

  Worker& worker_;
  std::vector<RRef> parameters_;  // those that a step uses
  LinearLoss loss_;
  std::vector<std::unique_ptr<DistributedOptimizer>> optimizers_;
};

}  // namespace psd::bench
