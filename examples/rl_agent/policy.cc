#include "examples/rl_agent/policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::examples {
namespace {

// Returns a seed that is the same on every machine, unlike std::hash.
uint64_t SeedOf(uint64_t seed, const std::string& observer) {
  for (char letter : observer) seed = (seed ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return seed;
}

}  // namespace

Variable LogProbabilities(const Variable& states, const std::vector<Variable>& parameters) {
  const Variable hidden = Tanh(Linear(states, parameters[0], parameters[1]));
  return LogSoftmax(Linear(hidden, parameters[2], parameters[3]));
}

void Policy::Use(std::vector<Variable> parameters) {
  for (Variable& parameter : parameters) parameter = parameter.Detach();
  MutexLock lock(mutex_);
  parameters_ = std::move(parameters);
}

absl::StatusOr<int64_t> Policy::SelectAction(const std::string& observer, const Tensor& state) {
  if (state.dtype() != DType::kF32 || state.shape() != Shape({1, kStates}) ||
      !state.IsContiguous()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a state is f32[1, ", kStates, "], not ", state.ToString()));
  }
  std::vector<Variable> parameters;
  {
    MutexLock lock(mutex_);
    parameters = parameters_;
  }
  if (parameters.empty()) return absl::FailedPreconditionError("the agent has no policy yet");
  const Variable probabilities = LogProbabilities(state, parameters);
  if (!probabilities.ok()) return probabilities.status();
  const double of_right = std::exp(probabilities.tensor().data<float>()[1]);

  MutexLock lock(mutex_);
  Observed& observed = Of(observer);
  const double uniform = static_cast<double>(observed.random() >> 11) * 0x1p-53;
  const int action = uniform < of_right ? 1 : 0;
  CartPole::State seen;
  std::copy_n(state.data<float>(), seen.size(), seen.begin());
  observed.episode.states.push_back(seen);
  observed.episode.actions.push_back(action);
  return action;
}

Episode Policy::Take(const std::string& observer) {
  MutexLock lock(mutex_);
  return std::exchange(Of(observer).episode, Episode());
}

Policy::Observed& Policy::Of(const std::string& observer) {
  auto [it, added] = observers_.try_emplace(observer);
  if (added) it->second.random.seed(SeedOf(seed_, observer));
  return it->second;
}

}  // namespace psd::examples
