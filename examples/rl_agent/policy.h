#pragma once

// What the agent does in a state, and what it did: a small network that says how probable each
// action is, and the episodes that were played by it.

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

// Log-probabilities [batch, kActions] of the actions in `states` [batch, kStates], by the
// parameters weight1 [h, kStates], bias1 [h], weight2 [kActions, h], bias2 [kActions].
Variable LogProbabilities(const Variable& states, const std::vector<Variable>& parameters);

// The states that an observer saw, and which action it was given in each.
struct Episode {
  std::vector<CartPole::State> states;
  std::vector<int> actions;
};

// The policy as the observers use it: fixed while they play. Thread-safe.
class Policy {
 public:
  // Every observer's actions are drawn from a stream of its own, so that they do not depend on the
  // order in which the observers' calls come.
  explicit Policy(uint64_t seed) : seed_(seed) {}

  // The parameters to act by from now on, without history.
  void Use(std::vector<Variable> parameters) PSD_EXCLUDES(mutex_);

  // Draws an action in `state` for `observer`, and remembers both.
  // Errors: INVALID_ARGUMENT for what is no state; FAILED_PRECONDITION before the first Use.
  absl::StatusOr<int64_t> SelectAction(const std::string& observer, const Tensor& state)
      PSD_EXCLUDES(mutex_);

  // What `observer` did since the last Take.
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
