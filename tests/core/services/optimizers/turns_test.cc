// Turns of steps over the wire: the messages that end them arrive.

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/steps/step_request.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref.h"
#include "core/runtime/runtime.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/values/value_service.h"
#include "core/store/store.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/picky_carrier.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd::services {
namespace {

std::unique_ptr<worker::Runtime> Start(const std::string& name,
                                       worker::RuntimeOptions options = {}) {
  options.name = name;
  options.listen = "127.0.0.1:0";
  std::unique_ptr<worker::Runtime> runtime = *worker::Runtime::Create(std::move(options));
  EXPECT_TRUE(runtime->Start().ok());
  return runtime;
}

// Returns `trainer`'s reference to an optimizer in which steps wait, one by one or in rounds.
rref::RRef Join(worker::Runtime& trainer, worker::Runtime& owner,
                const optim::UpdateMode& mode =
                    optim::UpdateMode::BoundedStaleness(1, optim::UpdateMode::WhenStale::kWait)) {
  trainer.agent().AddPeer(owner.name(), owner.address());
  store::CreateOptions parameter;
  parameter.requires_grad = true;
  auto made = owner.store()
                  .GetOrCreate(store::ChangingForTests::Make(), "w", parameter,
                               [] { return store::Value(Tensor::Of<float>({1}, {1})); })
                  .Wait();
  EXPECT_TRUE(made.ok()) << made.status();
  auto w = trainer.values().Lookup(owner.name(), "w", {}).Wait();
  EXPECT_TRUE(w.ok()) << w.status();
  optim::OptimizerSettings settings;
  settings.mode = mode;
  auto optimizer = trainer.optimizer_service()
                       .Create(owner.name(), "main", {{{"sgd", {{"lr", 1}}}, {*w}}}, settings, {})
                       .Wait();
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return *optimizer;
}

TEST(TurnsTest, TheEndOfATurnIsSentUntilItArrives) {
  std::atomic<int> refusals{0};
  testing::PickyRules rules;
  rules.refuses = [&](const carrier::Message& message) -> absl::Status {
    if (message.header.find("optimizer.end_turn") == std::string::npos) return absl::OkStatus();
    if (++refusals > 3) return absl::OkStatus();
    return absl::ResourceExhaustedError("too much is on its way");
  };
  const auto owner = Start("owner0");
  worker::RuntimeOptions picky;
  picky.carrier = std::make_shared<testing::PickyCarrier>(*carrier::NewGrpcCarrier({}), rules);
  const auto holder = Start("trainer0", std::move(picky)), next = Start("trainer1");
  const rref::RRef mine = Join(*holder, *owner), theirs = Join(*next, *owner);

  const TurnCall turn{holder->ids().Next()};
  ASSERT_TRUE(holder->optimizer_service().TakeTurn(mine, turn, {}).Wait().ok());
  holder->optimizer_service().EndTurn(mine, turn.turn, /*applied=*/false);
  const auto taken = next->optimizer_service().TakeTurn(theirs, {next->ids().Next()}, {}).Wait();
  EXPECT_TRUE(taken.ok()) << taken.status();
  EXPECT_GT(refusals, 3);
}

// Nobody waits for a trainer that has released its optimizer while its link was down.
TEST(TurnsTest, AMessageOfLeavingIsSentUntilItArrives) {
  std::atomic<int> refusals{0};
  testing::PickyRules rules;
  rules.refuses = [&](const carrier::Message& message) -> absl::Status {
    if (message.header.find("optimizer.leave") == std::string::npos) return absl::OkStatus();
    if (++refusals > 3) return absl::OkStatus();
    return absl::ResourceExhaustedError("too much is on its way");
  };
  const auto owner = Start("owner0");
  worker::RuntimeOptions picky;
  picky.carrier = std::make_shared<testing::PickyCarrier>(*carrier::NewGrpcCarrier({}), rules);
  const auto leaver = Start("trainer0", std::move(picky)), next = Start("trainer1");
  const optim::UpdateMode rounds = optim::UpdateMode::Synchronous(2);
  const rref::RRef mine = Join(*leaver, *owner, rounds), theirs = Join(*next, *owner, rounds);
  const auto turn = [](worker::Runtime& trainer, const rref::RRef& optimizer) {
    return trainer.optimizer_service().TakeTurn(optimizer, {trainer.ids().Next()}, {});
  };
  auto first = turn(*leaver, mine), second = turn(*next, theirs);
  ASSERT_TRUE(first.Wait().ok()) << first.Wait().status();
  ASSERT_TRUE(second.Wait().ok());
  EXPECT_EQ(first.Wait()->round.members.size(), 2u);
  leaver->optimizer_service().Leave(mine, /*stays=*/false);
  const auto alone = turn(*next, theirs).Wait();
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->round.members.size(), 1u);
  EXPECT_GT(refusals, 3);
}

// The lead's message about a round names a turn of the trainer's former session, and arrives after
// the trainer has created the optimizer again.
TEST(TurnsTest, NobodyWaitsForATurnOfATrainerThatHasLostItsSessionAndIsBack) {
  std::atomic<bool> cut{false};
  testing::PickyRules rules;
  rules.refuses = [&](const carrier::Message&) -> absl::Status {
    return cut ? absl::UnavailableError("the network is down") : absl::OkStatus();
  };
  rules.loses = [&](const carrier::Message&) { return cut.load(); };
  worker::RuntimeOptions short_leases, picky;
  short_leases.session.lease = absl::Seconds(10);
  picky.carrier = std::make_shared<testing::PickyCarrier>(*carrier::NewGrpcCarrier({}), rules);
  const auto owner = Start("owner0", std::move(short_leases));
  const auto lost = Start("trainer0", std::move(picky)), other = Start("trainer1");
  const optim::UpdateMode rounds = optim::UpdateMode::Synchronous(2);
  const rref::RRef before = Join(*lost, *owner, rounds), theirs = Join(*other, *owner, rounds);
  const GlobalId turn = other->ids().Next();
  const auto take = [](worker::Runtime& trainer, const rref::RRef& optimizer, GlobalId id) {
    return trainer.optimizer_service().TakeTurn(optimizer, {id, id.counter}, {});
  };
  auto first = take(*lost, before, lost->ids().Next()), second = take(*other, theirs, turn);
  ASSERT_TRUE(first.Wait().ok()) << first.Wait().status();
  ASSERT_TRUE(second.Wait().ok()) << second.Wait().status();
  ASSERT_EQ(second.Wait()->round.members.size(), 2u);

  const auto sessions = [&] {
    const std::vector<rpc::PeerStatus> peers = owner->agent().Peers();
    return std::count_if(peers.begin(), peers.end(), [](const rpc::PeerStatus& each) {
      return each.peer.name == "trainer0" && each.epoch_here != 0;
    });
  };
  cut = true;
  while (sessions() > 0) absl::SleepFor(absl::Milliseconds(10));
  cut = false;
  while (lost->rrefs().CheckUsable(before).ok()) absl::SleepFor(absl::Milliseconds(10));
  Join(*lost, *owner, rounds);

  StepCall step;
  step.step = other->ids().Next();
  step.round = {turn, turn.counter, second.Wait()->round};
  rpc::CallOptions patience;
  patience.timeout = absl::Seconds(60);
  const auto stepped = other->optimizer_service().Step(theirs, step, patience).Wait();
  ASSERT_TRUE(stepped.ok()) << stepped.status();
  EXPECT_EQ(stepped->trainers, 1);
}

}  // namespace
}  // namespace psd::services
