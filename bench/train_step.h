#pragma once

// The train step of the step_* and trainers_* cases: pull all parameters, loss = 0.5 * sum of p *
// c, backward, step. Every parameter has its own coefficients c.

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
};

inline constexpr StepShape kDenseStep = {16, 1'000'000};
inline constexpr StepShape kSmallStep = {1000, 256};

// Thread-compatible.
class TrainStep {
 public:
  // Creates the parameters or attaches to them, and a named optimizer over them.
  static absl::StatusOr<std::unique_ptr<TrainStep>> Create(Worker& worker, const StepShape& shape,
                                                           const OptimizerSpec& spec);
  absl::Status Run();

 private:
  explicit TrainStep(Worker& worker) : worker_(worker) {}

  Worker& worker_;
  std::vector<RRef> parameters_;
  std::vector<Variable> coefficients_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

}  // namespace psd::bench
