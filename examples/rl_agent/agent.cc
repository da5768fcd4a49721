#include "examples/rl_agent/agent.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "client/calls.h"
#include "core/base/status.h"
#include "examples/rl_agent/returns.h"

namespace psd::examples {
namespace {

constexpr int64_t kHidden = 32;

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(WorkerOptions worker, AgentOptions options) {
  std::unique_ptr<Agent> agent(new Agent(std::move(options)));
  PSD_RETURN_IF_ERROR(worker.functions.Register(
      "agent.select_action",
      [raw = agent.get()](const FunctionCall& call,
                          const Values& arguments) -> absl::StatusOr<Values> {
        PSD_ASSIGN_OR_RETURN(const auto state, ReadValues<Tensor>(arguments));
        PSD_ASSIGN_OR_RETURN(const int64_t action,
                             raw->policy_.SelectAction(call.caller().name, std::get<0>(state)));
        return Values{action};
      }));
  PSD_ASSIGN_OR_RETURN(agent->worker_, Worker::Start(std::move(worker)));
  PSD_RETURN_IF_ERROR(agent->CreateParameters());
  return agent;
}

absl::Status Agent::CreateParameters() {
  CreateOptions parameter;
  parameter.requires_grad = true;
  const double bound = 1 / std::sqrt(static_cast<double>(kStates));
  const std::vector<std::pair<std::string, Program>> programs = {
      {"policy/weight1", Uniform({kHidden, kStates}, -bound, bound, options_.seed)},
      {"policy/bias1", Zeros({kHidden})},
      {"policy/weight2", Uniform({kActions, kHidden}, -0.1, 0.1, options_.seed + 1)},
      {"policy/bias2", Zeros({kActions})}};
  for (const auto& [name, create] : programs) {
    PSD_ASSIGN_OR_RETURN(RRef rref, worker_->GetOrCreate(options_.owner, name, create, parameter));
    parameters_.push_back(std::move(rref));
  }
  Adam adam;
  adam.lr = options_.lr;
  PSD_ASSIGN_OR_RETURN(optimizer_,
                       DistributedOptimizer::Create(*worker_, "policy", adam, parameters_));
  return absl::OkStatus();
}

absl::Status Agent::MeetObservers() {
  for (const std::string& name : options_.observers) {
    PSD_ASSIGN_OR_RETURN(WorkerInfo info, worker_->Info(name));
    observers_.push_back(std::move(info));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Agent::RunIteration() {
  PSD_ASSIGN_OR_RETURN(const Values values, worker_->ToHere(parameters_));
  std::vector<Variable> parameters;
  for (const Value& value : values) {
    PSD_ASSIGN_OR_RETURN(Variable parameter, ReadValue<Variable>(value));
    parameters.push_back(std::move(parameter));
  }
  policy_.Use(std::move(parameters));
  std::vector<Episode> episodes;
  for (int i = 0; i < options_.episodes; ++i) {
    PSD_ASSIGN_OR_RETURN(std::vector<Episode> played, PlayEpisodes());
    std::move(played.begin(), played.end(), std::back_inserter(episodes));
  }
  PSD_RETURN_IF_ERROR(Learn(episodes));
  size_t steps = 0;
  for (const Episode& episode : episodes) steps += episode.actions.size();
  return static_cast<double>(steps) / static_cast<double>(episodes.size());
}

absl::StatusOr<std::vector<Episode>> Agent::PlayEpisodes() {
  std::vector<Future<Values>> calls;
  for (const WorkerInfo& observer : observers_) {
    calls.push_back(worker_->RpcAsync(observer, Function::Registered("observer.run_episode"),
                                      {options_.most_steps}));
  }
  PSD_RETURN_IF_ERROR(WaitAll(calls).status());
  std::vector<Episode> episodes;
  for (const WorkerInfo& observer : observers_) episodes.push_back(policy_.Take(observer.name));
  return episodes;
}

// REINFORCE: raises the probability of actions whose return was above average, and lowers that of
// the others. The loss is the mean of -advantage * log probability(action).
absl::Status Agent::Learn(const std::vector<Episode>& episodes) {
  PSD_ASSIGN_OR_RETURN(const Batch batch, MakeBatch(episodes));
  PSD_ASSIGN_OR_RETURN(Context context, worker_->NewContext());
  PSD_ASSIGN_OR_RETURN(const std::vector<Variable> parameters,
                       worker_->ToHere(parameters_, context));
  const Variable loss = Sum(LogProbabilities(batch.states, parameters) * batch.weights);
  PSD_RETURN_IF_ERROR(context.Backward({loss}));
  return optimizer_->Step(context);
}

}  // namespace psd::examples
