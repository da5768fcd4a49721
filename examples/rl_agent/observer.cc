#include "examples/rl_agent/observer.h"

#include <string>
#include <tuple>
#include <utility>

#include "absl/types/span.h"
#include "core/base/status.h"

namespace psd::examples {

absl::StatusOr<std::unique_ptr<Observer>> Observer::Start(WorkerOptions options, uint64_t seed) {
  std::unique_ptr<Observer> observer(new Observer(seed));
  PSD_RETURN_IF_ERROR(options.functions.Register(
      "observer.run_episode",
      [raw = observer.get()](const FunctionCall& call, const Values& arguments) {
        return raw->RunEpisode(call, arguments);
      }));
  PSD_ASSIGN_OR_RETURN(observer->worker_, Worker::Start(std::move(options)));
  return observer;
}

// Makes calls from within a call: while this thread waits for the agent's answers, the worker runs
// another thread in its place.
absl::StatusOr<Values> Observer::RunEpisode(const FunctionCall& call, const Values& arguments) {
  PSD_ASSIGN_OR_RETURN(const auto limits, ReadValues<int64_t>(arguments));
  const int64_t most_steps = std::get<0>(limits);
  const Function select_action = Function::Registered("agent.select_action");
  MutexLock lock(mutex_);
  CartPole::State state = environment_.Reset();
  int64_t steps = 0;
  while (steps < most_steps && !environment_.Failed() && !call.cancelled()) {
    const Tensor seen = Tensor::Of<float>({1, 4}, absl::MakeConstSpan(state));
    PSD_ASSIGN_OR_RETURN(const Values answer,
                         call.RpcSync(call.caller().name, select_action, {seen}));
    PSD_ASSIGN_OR_RETURN(const auto action, ReadValues<int64_t>(answer));
    state = environment_.Push(std::get<0>(action) == 1);
    ++steps;
  }
  return Values{steps};
}

}  // namespace psd::examples
