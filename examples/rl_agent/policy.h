#pragma once

// The agent's policy: a small network that computes the probability of each action in a state, and
// the episodes that were played with it.

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "core/base/mutex.h"
#include "examples/rl_agent/cart_pole.h"

namespace psd::examples {

inline constexpr int64_t kStates = 4;
inline constexpr int64_t kActions = 2;

// Returns the log-probabilities [batch, kActions] of the actions in `states` [batch, kStates], with
// the parameters weight1 [h, kStates], bias1 [h], weight2 [kActions, h], bias2 [kActions].
Variable LogProbabilities(const Variable& states, const std::vector<Variable>& parameters);

// The states that an observer saw, and the action that it was given in each.
struct Episode {
  std::vector<CartPole::State> states;
  std::vector<int> actions;
};

// The policy for the observers. Its parameters are fixed while they play. Thread-safe.
class Policy {
 public:
  // Each observer has its own stream of random numbers, so that its actions do not depend on the
  // order in which the observers' calls come.
  explicit Policy(uint64_t seed) : seed_(seed) {}

  // Sets the parameters of the policy from now on. They have no history.
  void Use(std::vector<Variable> parameters) PSD_EXCLUDES(mutex_);

  // Draws an action in `state` for `observer`, and remembers both.
  // Errors: INVALID_ARGUMENT if `state` is no state; FAILED_PRECONDITION before the first Use.
  absl::StatusOr<int64_t> SelectAction(const std::string& observer, const Tensor& state)
      PSD_EXCLUDES(mutex_);

  // Returns the steps of `observer` since the last Take.
  Episode Take(const std::string& observer) PSD_EXCLUDES(mutex_);

 private:
  struct Observed {
    std::mt19937_64 random;
    Episode episode;
  };
  Observed& Of(const std::string& observer) PSD_REQUIRES(mutex_);

  const uint64_t seed_;
  Mutex mutex_;  // leaf
  std::vector<Variable> parameters_ PSD_GUARDED_BY(mutex_);
  std::map<std::string, Observed> observers_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::examples
