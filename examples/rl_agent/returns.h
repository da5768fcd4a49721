#pragma once

// From episodes to what a policy gradient needs.

#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "examples/rl_agent/policy.h"

namespace psd::examples {

// For an episode with a reward of 1 in each step: what is still to come, discounted by 0.99 a step.
std::vector<double> DiscountedReturns(size_t steps);

struct Batch {
  Tensor states;   // f32[steps, kStates], of all episodes
  Tensor weights;  // f32[steps, kActions]: -advantage / steps at the action that was taken, else 0
};
// Advantages are the returns less the mean of all episodes at the same step, divided by their
// deviation.
// Errors: INVALID_ARGUMENT for no step at all; RESOURCE_EXHAUSTED.
absl::StatusOr<Batch> MakeBatch(const std::vector<Episode>& episodes);

}  // namespace psd::examples
