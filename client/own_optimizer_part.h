#pragma once

// The way from a DistributedOptimizer to the value that holds it. For client/.

#include <vector>

#include "absl/status/statusor.h"
#include "client/optimizers.h"
#include "core/rref/rref.h"

namespace psd {

struct OwnOptimizerPart {
  RRef optimizer;
  std::vector<std::vector<RRef>> groups;  // the parameters of each group, in its order
};

// Returns the only part of an optimizer whose parameters are all on the trainer's own worker.
// Errors: FAILED_PRECONDITION naming an owner if some are elsewhere.
absl::StatusOr<OwnOptimizerPart> OwnPartOf(const DistributedOptimizer& optimizer);

// Tells the trainer's side of an optimizer which loss scale a load has set on its only part.
void LossScaleLoaded(DistributedOptimizer& optimizer, double scale);

}  // namespace psd
