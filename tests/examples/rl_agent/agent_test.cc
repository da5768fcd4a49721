#include "examples/rl_agent/agent.h"

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "examples/rl_agent/observer.h"
#include "examples/rl_agent/policy.h"
#include "examples/rl_agent/returns.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/daemon/config.h"
#include "server/daemon/server.h"
#include "tests/client/test_world.h"

namespace psd::examples {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An owner, an agent and observers in one process.
class World {
 public:
  explicit World(int observers) {
    server::DaemonConfig config;
    config.name = "owner0";
    config.listen = "127.0.0.1:0";
    owner_ = Must(server::Server::Create(config, {}, NewNullLogger()));
    address_ = Must(owner_->Start());
    AgentOptions options;
    for (int i = 0; i < observers; ++i) {
      const std::string name = absl::StrCat("observer", i);
      observers_.push_back(Must(Observer::Start(Member(name), static_cast<uint64_t>(i))));
      options.observers.push_back(name);
    }
    agent_ = Must(Agent::Start(Member("agent"), options));
    EXPECT_TRUE(agent_->MeetObservers().ok());
  }

  std::vector<double> Run(int iterations) {
    std::vector<double> steps;
    for (int i = 0; i < iterations; ++i) steps.push_back(Must(agent_->RunIteration()));
    return steps;
  }

  Agent& agent() { return *agent_; }

 private:
  WorkerOptions Member(const std::string& name) const {
    WorkerOptions options;
    options.name = name;
    options.owners = {{"owner0", address_}};
    options.listen = "127.0.0.1:0";
    return options;
  }

  std::unique_ptr<server::Server> owner_;
  std::string address_;
  std::vector<std::unique_ptr<Observer>> observers_;
  std::unique_ptr<Agent> agent_;
};

double Mean(const std::vector<double>& values, size_t begin, size_t end) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(begin),
                         values.begin() + static_cast<std::ptrdiff_t>(end), 0.0) /
         static_cast<double>(end - begin);
}

TEST(AgentTest, ThePolicyGradientImprovesTheReturn) {
  World world(/*observers=*/2);
  const std::vector<double> steps = world.Run(15);
  EXPECT_GT(Mean(steps, 12, 15), 2 * Mean(steps, 0, 3));
}

TEST(AgentTest, TheSameSeedGivesTheSameRun) {
  EXPECT_EQ(World(2).Run(4), World(2).Run(4));
}

TEST(AgentTest, AnObserverRefusesWrongArguments) {
  World world(1);
  const absl::Status arguments =
      world.agent()
          .worker()
          .RpcSync("observer0", Function::Registered("observer.run_episode"), {"x"})
          .status();
  EXPECT_EQ(arguments.code(), absl::StatusCode::kInvalidArgument);
}

TEST(PolicyTest, ActionsFollowTheProbabilitiesAndAreRemembered) {
  Policy policy(/*seed=*/1);
  const Tensor state = Tensor::Of<float>({1, 4}, {0, 0, 0, 0});
  EXPECT_EQ(policy.SelectAction("observer0", state).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const Tensor zeros = Tensor::Of<float>({1, 4}, {0, 0, 0, 0});
  // The policy pushes to the right with a probability of 1 - 1e-9.
  policy.Use({zeros, Tensor::Of<float>({1}, {0}), Tensor::Of<float>({2, 1}, {0, 0}),
              Tensor::Of<float>({2}, {0, 20})});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Must(policy.SelectAction("observer0", state)), 1);
  EXPECT_THAT(policy.SelectAction("observer0", Tensor::Scalar<float>(1)).status().message(),
              HasSubstr("a state is f32[1, 4], not f32[]"));
  EXPECT_THAT(policy.Take("observer0").actions, ElementsAre(1, 1, 1, 1, 1));
  EXPECT_TRUE(policy.Take("observer0").actions.empty());
  EXPECT_TRUE(policy.Take("observer1").actions.empty());
}

TEST(ReturnsTest, LaterStepsHaveLessToCome) {
  EXPECT_THAT(DiscountedReturns(3), ElementsAre(1 + 0.99 * (1 + 0.99), 1 + 0.99, 1));
}

TEST(ReturnsTest, WhatStoodLongerIsToBecomeMoreProbable) {
  const Episode longer = {{{1, 2, 3, 4}, {5, 6, 7, 8}}, {0, 1}}, shorter = {{{9, 9, 9, 9}}, {1}};
  const Batch batch = Must(MakeBatch({longer, shorter}));
  EXPECT_THAT(Elements(batch.states), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9));
  const std::vector<float> weights = Elements(batch.weights);
  EXPECT_LT(weights[0], 0) << "0 was taken: a greater probability, a smaller loss";
  EXPECT_LT(weights[3], 0);
  EXPECT_FLOAT_EQ(weights[5], -weights[0]);
  EXPECT_THAT(Elements(Must(MakeBatch({longer, longer})).weights), Each(0))
      << "of equals nothing is to be learned";
  EXPECT_FALSE(MakeBatch({}).ok());
}

}  // namespace
}  // namespace psd::examples
