// Reinforcement learning with an agent and observers. Observers are trainers that play a cart with
// a pole. The agent calls them, and in each step they call the agent back for an action. The
// agent's policy lives on an owner, which steps it. The agent ends when the pole stands for nearly
// all of an episode's 200 steps, after 20 to 60 iterations. The policy stays on the owner, and the
// next run continues with it.
//
//   bazel build -c opt //server/daemon:psd //examples/rl_agent:all
//   bazel-bin/server/daemon/psd --dev &
//   bazel-bin/examples/rl_agent/run_observer 0 & bazel-bin/examples/rl_agent/run_observer 1 &
//   bazel-bin/examples/rl_agent/run_agent

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/base/status.h"
#include "examples/rl_agent/agent.h"
#include "examples/rl_agent/job.h"

namespace psd::examples {
namespace {

constexpr int kMostIterations = 120;
constexpr int kShown = 10;     // iterations for which the mean is shown
constexpr double kGoal = 195;  // steps

// Trains until the goal is reached. Errors: DEADLINE_EXCEEDED if it is not reached.
absl::Status Train(Agent& agent) {
  double last = 0;
  for (int i = 1; i <= kMostIterations && last < kGoal; i += kShown) {
    last = 0;
    for (int j = 0; j < kShown; ++j) {
      PSD_ASSIGN_OR_RETURN(const double steps, agent.RunIteration());
      last += steps / kShown;
    }
    std::printf("iterations %3d to %3d  the pole stood %5.1f steps\n", i, i + kShown - 1, last);
  }
  if (last >= kGoal) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("the pole stood ", last, " steps after ",
                                                  kMostIterations, " iterations, not ", kGoal));
}

absl::Status Run(const char* address) {
  AgentOptions options;
  for (int i = 0; i < kObservers; ++i) options.observers.push_back(ObserverName(i));
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Agent> agent,
                       Agent::Start(MemberOptions("agent", address), options));
  PSD_RETURN_IF_ERROR(agent->worker().Barrier("ready"));
  PSD_RETURN_IF_ERROR(agent->MeetObservers());
  absl::Status learned = Train(*agent);
  ShutdownOptions together;
  together.with_group = true;
  learned.Update(agent->worker().Shutdown(together));
  return learned;
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  const absl::Status status = psd::examples::Run(argc > 1 ? argv[1] : "127.0.0.1:7071");
  if (!status.ok()) std::fprintf(stderr, "run_agent: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
