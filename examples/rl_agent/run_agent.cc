// Reinforcement learning with an agent and observers. Observers are trainers that play a cart with
// a pole and are called by the agent; in each step they call it back for an action. The agent's
// policy lives on an owner, which steps it.
//
//   bazel build -c opt //server/daemon:psd //examples/rl_agent:all
//   bazel-bin/server/daemon/psd --dev &
//   bazel-bin/examples/rl_agent/run_observer 0 & bazel-bin/examples/rl_agent/run_observer 1 &
//   bazel-bin/examples/rl_agent/run_agent

#include <cstdio>
#include <memory>
#include <utility>

#include "client/psd.h"
#include "examples/rl_agent/agent.h"
#include "examples/rl_agent/job.h"

namespace psd::examples {
namespace {

constexpr int kIterations = 120;

absl::Status Run(const char* address) {
  AgentOptions options;
  for (int i = 0; i < kObservers; ++i) options.observers.push_back(ObserverName(i));
  PSD_ASSIGN_OR_RETURN(const std::unique_ptr<Agent> agent,
                       Agent::Start(MemberOptions("agent", address), options));
  PSD_RETURN_IF_ERROR(agent->worker().Barrier("ready"));
  PSD_RETURN_IF_ERROR(agent->MeetObservers());
  for (int i = 1; i <= kIterations; ++i) {
    PSD_ASSIGN_OR_RETURN(const double steps, agent->RunIteration());
    if (i % 10 == 0) std::printf("iteration %3d  the pole stood %.1f steps\n", i, steps);
  }
  ShutdownOptions together;
  together.with_group = true;
  return agent->worker().Shutdown(together);
}

}  // namespace
}  // namespace psd::examples

int main(int argc, char** argv) {
  const absl::Status status = psd::examples::Run(argc > 1 ? argv[1] : "127.0.0.1:7071");
  if (!status.ok()) std::fprintf(stderr, "run_agent: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
