#pragma once

// The agent lets its observers play episodes with its policy, and improves the policy by the
// results. The parameters of the policy live on an owner; the agent pulls them, differentiates, and
// lets the owner step them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/psd.h"
#include "examples/rl_agent/policy.h"

namespace psd::examples {

struct AgentOptions {
  std::string owner = "owner0";        // of the parameters
  std::vector<std::string> observers;  // the agent learns from their episodes in this order
  int episodes = 4;                    // of each observer in an iteration
  int64_t most_steps = 200;            // of an episode
  double lr = 0.02;
  uint64_t seed = 1;
};

// Thread-compatible, except that it serves calls on other threads.
class Agent {
 public:
  // Joins the job and offers agent.select_action(state) -> action, which is added to the functions
  // of `worker`. Requires: the owners of `worker` include `options.owner`.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(WorkerOptions worker, AgentOptions options);

  // Finds the observers through the registrar. Call it once, when all of them have joined.
  absl::Status MeetObservers();

  // Plays some episodes on every observer, all observers at the same time, and takes one step of
  // the policy gradient with them. Returns the mean number of steps for which the pole stood. This
  // number should grow.
  absl::StatusOr<double> RunIteration();

  Worker& worker() { return *worker_; }

 private:
  explicit Agent(AgentOptions options) : options_(std::move(options)), policy_(options_.seed) {}
  absl::Status CreateParameters();
  // Plays one episode on each observer. Returns the episodes in the order of the observers.
  absl::StatusOr<std::vector<Episode>> PlayEpisodes();
  absl::Status Learn(const std::vector<Episode>& episodes);

  const AgentOptions options_;
  Policy policy_;
  std::vector<WorkerInfo> observers_;
  std::vector<RRef> parameters_;
  std::unique_ptr<Worker> worker_;  // its functions use the policy
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

}  // namespace psd::examples
