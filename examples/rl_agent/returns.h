#pragma once

// Computes from episodes the batch that a policy gradient needs.

#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "examples/rl_agent/policy.h"

namespace psd::examples {

// Returns the discounted return at each step of an episode that has a reward of 1 in each step; the
// discount is 0.99 per step.
std::vector<double> DiscountedReturns(size_t steps);

struct Batch {
  Tensor states;   // f32[steps, kStates], of all episodes
  Tensor weights;  // f32[steps, kActions]: -advantage / steps at the action that was taken, else 0
};
// Makes a batch. Advantages are the returns minus the mean of all episodes at the same step,
// divided by their deviation. Errors: INVALID_ARGUMENT if there is no step; RESOURCE_EXHAUSTED.
absl::StatusOr<Batch> MakeBatch(const std::vector<Episode>& episodes);

}  // namespace psd::examples
