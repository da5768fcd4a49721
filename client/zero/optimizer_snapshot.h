#pragma once

// The state of a whole optimizer as a value, however many ranks keep parts of it.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ddp/replica.h"
#include "client/optimizers.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace psd {

// One parameter of a snapshot and its state.
struct ParameterSnapshot {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  bool requires_grad = true;
  uint64_t steps = 0;  // the number of steps that had a gradient for it
  // By PyTorch's names: "exp_avg", "momentum_buffer", … Each has the parameter's shape. Empty for a
  // parameter that requires no grad, and for an optimizer without state.
  std::map<std::string, Tensor> state;
};

struct GroupSnapshot {
  std::map<std::string, double> options;  // all of them
  std::vector<ParameterSnapshot> parameters;
};

// A copy: later steps do not change it, and changing it changes no optimizer.
struct OptimizerSnapshot {
  std::string type;  // "adam"
  std::vector<GroupSnapshot> groups;
  uint64_t steps = 0;       // accepted steps, which the schedule counts
  double loss_scale = 0;    // 0 if losses are not scaled
  uint64_t good_steps = 0;  // steps in a row that did not overflow with this loss scale
};

// Copies the state of an optimizer over parameters of `replica` that only this trainer steps. A
// ZeroRedundancyOptimizer can load the copy, on any number of ranks.
// Errors: FAILED_PRECONDITION for an optimizer with parameters on other workers, or with others
// than those of the replica; RESOURCE_EXHAUSTED.
absl::StatusOr<OptimizerSnapshot> TakeSnapshot(const DistributedOptimizer& optimizer,
                                               const Replica& replica);
// Gives the optimizer the options, the state and the counters of a snapshot. If the saved optimizer
// did not scale losses, the loss scale stays as it is. No step may run at the same time.
// Errors: FAILED_PRECONDITION naming the difference in type, number of groups, parameters, shapes
// or state, or as TakeSnapshot; INVALID_ARGUMENT for an option that is unknown or out of range;
// RESOURCE_EXHAUSTED. Nothing has changed then.
absl::Status LoadSnapshot(DistributedOptimizer& optimizer, const Replica& replica,
                          const OptimizerSnapshot& snapshot);

}  // namespace psd
