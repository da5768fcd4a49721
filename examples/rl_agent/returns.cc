#include "examples/rl_agent/returns.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "core/base/status.h"

namespace psd::examples {
namespace {

constexpr double kDiscount = 0.99;

// Returns the mean return of the episodes at each step. Episodes that had ended count as 0.
std::vector<double> MeanReturns(const std::vector<Episode>& episodes) {
  std::vector<double> mean;
  for (const Episode& episode : episodes) {
    const std::vector<double> returns = DiscountedReturns(episode.actions.size());
    if (returns.size() > mean.size()) mean.resize(returns.size());
    for (size_t i = 0; i < returns.size(); ++i) {
      mean[i] += returns[i] / static_cast<double>(episodes.size());
    }
  }
  return mean;
}

// Compares each return with the same step of the other episodes. Returns fall from step to step
// even if an episode is played well, so a comparison with other steps would teach nothing.
std::vector<double> Advantages(const std::vector<Episode>& episodes) {
  const std::vector<double> usual = MeanReturns(episodes);
  std::vector<double> all;
  double squares = 0;
  for (const Episode& episode : episodes) {
    const std::vector<double> returns = DiscountedReturns(episode.actions.size());
    for (size_t i = 0; i < returns.size(); ++i) {
      all.push_back(returns[i] - usual[i]);
      squares += all.back() * all.back();
    }
  }
  const double deviation = std::sqrt(squares / static_cast<double>(all.size()));
  for (double& value : all) value /= std::max(deviation, 1e-6);
  return all;
}

}  // namespace

std::vector<double> DiscountedReturns(size_t steps) {
  std::vector<double> returns(steps);
  double next = 0;
  for (size_t i = steps; i-- > 0;) returns[i] = next = 1 + kDiscount * next;
  return returns;
}

absl::StatusOr<Batch> MakeBatch(const std::vector<Episode>& episodes) {
  const std::vector<double> advantages = Advantages(episodes);
  const auto steps = static_cast<int64_t>(advantages.size());
  if (steps == 0) return absl::InvalidArgumentError("episodes without a step teach nothing");
  Batch batch;
  PSD_ASSIGN_OR_RETURN(batch.states, Tensor::Empty({steps, kStates}, DType::kF32));
  PSD_ASSIGN_OR_RETURN(batch.weights, Tensor::Zeros({steps, kActions}, DType::kF32));
  float* state = batch.states.mutable_data<float>();
  float* weights = batch.weights.mutable_data<float>();
  auto advantage = advantages.begin();
  for (const Episode& episode : episodes) {
    for (size_t i = 0; i < episode.actions.size(); ++i) {
      state = std::copy(episode.states[i].begin(), episode.states[i].end(), state);
      weights[episode.actions[i]] = static_cast<float>(-*advantage++ / static_cast<double>(steps));
      weights += kActions;
    }
  }
  return batch;
}

}  // namespace psd::examples
