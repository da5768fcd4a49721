// Optimizers with bounded staleness: gradients that are too old are refused, or the steps of
// trainers that are ahead wait.
// that are ahead wait.

#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/psd.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/optimizer_fixture.h"
#include "tests/client/test_world.h"
#include "tests/core/picky_carrier.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

TEST_F(OptimizerTest, AGradientOfAnUnknownVersionHidesNoOldOne) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(0).WithUnknownVersions();
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_}, settings));
  Context context = Collect(*trainer_, {{w_, 1}});
  ASSERT_TRUE(context.PushGradient(w_, Tensor::Of<float>({2}, {1, 1}), 0).ok());
  ASSERT_TRUE(optimizer->Step(context).ok());
  EXPECT_EQ(First(w_), 8);
  EXPECT_EQ(optimizer->Step(context).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(First(w_), 8);
}

TEST_F(ModesTest, PacedTrainersNeverApplyWhatIsTooOld) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(1, UpdateMode::WhenStale::kWait);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  ASSERT_TRUE(StepAsync(*trainer_, *mine, 1, 1).get().status().ok());
  ASSERT_TRUE(StepAsync(*other_, *theirs, 1, 1).get().status().ok());
  auto ahead = StepAsync(*other_, *theirs, 1, 1);
  AwaitWaiting(1);  // because trainer0 may be computing a gradient
  StepOutcome slow = StepAsync(*trainer_, *mine, 1, 1).get();
  ASSERT_TRUE(slow.status().ok()) << slow.status();
  ASSERT_TRUE(ahead.get().status().ok());
  EXPECT_EQ(First(w_), 6);
  const auto status = owner0_.runtime().status().Collect({});
  ASSERT_EQ(status.optimizers_size(), 1);
  EXPECT_LE(status.optimizers(0).max_staleness(), 1u);
  ASSERT_EQ(status.optimizers(0).staleness_size(), 1);
  EXPECT_EQ(status.optimizers(0).staleness(0).parameter(), "w");
  EXPECT_EQ(status.optimizers(0).staleness(0).steps(), 4u);
  EXPECT_THAT(status.optimizers(0).spec(), HasSubstr("bounded_staleness(1, wait)"));
}

// With a bound of 0 only some of the three trainers can be served, so the order of their steps
// matters. If each of the two owners chose its own order, they would wait for each other.
TEST_F(ModesTest, PacedTrainersOfSeveralOwnersGoInOneOrder) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(0, UpdateMode::WhenStale::kWait);
  auto third = StartOther("trainer2");
  const std::vector<Worker*> workers = {trainer_.get(), other_.get(), third.get()};
  std::vector<std::unique_ptr<DistributedOptimizer>> optimizers;
  for (Worker* worker : workers) optimizers.push_back(Shared(*worker, settings));
  constexpr int kSteps = 20;
  StepOptions both;
  both.check_first = true;  // a step is applied on both owners or on neither
  std::vector<std::future<int>> applied;
  for (size_t i = 0; i < workers.size(); ++i) {
    applied.push_back(std::async(std::launch::async, [&, i] {
      RRef w = Must(workers[i]->Lookup("owner0", "w")), b = Must(workers[i]->Lookup("owner1", "b"));
      int accepted = 0;
      for (int step = 0; step < kSteps; ++step) {
        Context context = Collect(*workers[i], {{w, 1}, {b, 1}});
        accepted += optimizers[i]->Step(context, both).ok();
      }
      optimizers[i].reset();  // the other trainers no longer wait for this one
      return accepted;
    }));
  }
  int accepted = 0;
  for (std::future<int>& each : applied) accepted += each.get();
  EXPECT_GT(accepted, 0);
  EXPECT_EQ(First(w_), 10 - accepted);
  EXPECT_EQ(First(b_), 10 - accepted);
}

// The lead never receives the message that ends a turn. The turn ends when its trainer asks for the
// next one.
TEST(LeadTest, ATrainerDoesNotWaitBehindItsOwnLostTurn) {
  testing::PickyRules rules;
  rules.loses = [](const carrier::Message& message) {
    return message.header.find("optimizer.end_turn") != std::string::npos;
  };
  worker::RuntimeOptions picky;
  picky.carrier = std::make_shared<testing::PickyCarrier>(Must(carrier::NewGrpcCarrier({})), rules);
  TestOwner lead("owner0", std::move(picky)), follower("owner1");
  auto trainer = StartTrainer("trainer0", {lead.address(), follower.address()});
  const RRef w = MakeParameter(*trainer, "owner0", "w", Tensor::Of<float>({1}, {10})),
             b = MakeParameter(*trainer, "owner1", "b", Tensor::Of<float>({1}, {10}));
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(1, UpdateMode::WhenStale::kWait);
  auto optimizer = Must(
      DistributedOptimizer::Create(*trainer, "main", kSgd1, std::vector<RRef>{w, b}, settings));
  StepOptions clip;
  clip.clip_norm = 1;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // The step fails while it has the turn. It can be retried as long as its outcome exists.
  const StepOutcome failed = optimizer->StepDetailed(Collect(*trainer, {{w, nan}, {b, 1}}), clip);
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInvalidArgument) << failed.status();
  const StepOutcome outcome = optimizer->StepDetailed(Collect(*trainer, {{w, 1}, {b, 1}}));
  EXPECT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_EQ(Read(*trainer, w)[0], 9);
  EXPECT_FALSE(optimizer->RetryFailed(failed).status().ok());
}

TEST_F(ModesTest, ATurnEndsWithTheSessionOfItsTrainer) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(0, UpdateMode::WhenStale::kWait);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  std::future<StepOutcome> holder;
  std::future<StepOutcome> waiter;
  {
    HeldParameter held(owner1_, b_);
    holder = StepAsync(*other_, *theirs, 1, 1);
    while (First(w_) != 9) std::this_thread::yield();  // until the step has the turn
    waiter = StepAsync(*trainer_, *mine, 1, 1);
    AwaitWaiting(1);
    EXPECT_TRUE(other_->Shutdown(absl::ZeroDuration()).ok());
    AwaitWaiting(0);
  }
  EXPECT_FALSE(holder.get().status().ok());
  waiter.wait();
}

}  // namespace
}  // namespace psd
