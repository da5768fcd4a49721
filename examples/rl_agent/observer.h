#pragma once

// An observer: a trainer with an environment, which the agent calls to play episodes. In each step
// it calls the agent back for an action.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "core/base/mutex.h"
#include "examples/rl_agent/cart_pole.h"

namespace psd::examples {

// Thread-safe. Serves calls from its start to its destruction.
class Observer {
 public:
  // Joins the job and offers
  //   observer.run_episode(most_steps) -> the number of steps for which the pole stood
  // to an agent that offers agent.select_action(state) -> action. The agent and the observer can
  // call each other only if one of them listens (`options.listen`).
  static absl::StatusOr<std::unique_ptr<Observer>> Start(WorkerOptions options, uint64_t seed);

  Worker& worker() { return *worker_; }

 private:
  explicit Observer(uint64_t seed) : environment_(seed) {}
  absl::StatusOr<Values> RunEpisode(const FunctionCall& call, const Values& arguments)
      PSD_EXCLUDES(mutex_);

  Mutex mutex_;  // held during an episode, because there is one environment
  CartPole environment_ PSD_GUARDED_BY(mutex_);
  std::unique_ptr<Worker> worker_;  // destroyed first, because its functions use the other members
};

}  // namespace psd::examples
