// Steps that fail on some owners: what their errors say, what was applied, and what a second
// attempt does.

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/optim/functional/functional_optimizer.h"
#include "core/optim/options/optimizer_registry.h"
#include "core/runtime/runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/optimizer_fixture.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(OptimizerTest, OPT_09_AnOwnersErrorAtConstructionFailsItWithThatText) {
  worker::RuntimeOptions options;
  options.optimizers = optim::OptimizerRegistry();
  ASSERT_TRUE(options.optimizers
                  .Register("sgd",
                            [](const OptimizerSpec&)
                                -> absl::StatusOr<std::unique_ptr<optim::FunctionalOptimizer>> {
                              return absl::InvalidArgumentError("this owner is picky");
                            })
                  .ok());
  TestOwner picky("picky", std::move(options));
  auto trainer = StartTrainer("trainer1", {owner0_.address(), picky.address()});
  RRef w = Must(trainer->Lookup("owner0", "w"));
  RRef p = MakeParameter(*trainer, "picky", "p", Tensor::Of<float>({1}, {1}));
  absl::Status refused = DistributedOptimizer::Create(*trainer, kSgd1, {w, p}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("picky: "), HasSubstr("this owner is picky")));
}

// owner1 refuses the step because its parameter got a new version after the pull.
TEST_F(OptimizerTest, OPT_10_OPT_11_OPT_12_FailuresOfAllOwnersAndWhatWasApplied) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(0);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}, settings));
  Context context = Collect(*trainer_, {{w_, 1}, {b_, 1}});
  Must(trainer_->Assign(b_, Tensor::Of<float>({2}, {5, 5})));
  StepOutcome one = optimizer->StepDetailed(context);
  EXPECT_EQ(one.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(one.status().message(),
              AllOf(HasSubstr("failed on owner1"), HasSubstr("'b'"),
                    HasSubstr("it was applied on owner0"), Not(HasSubstr("owner0 ("))));
  EXPECT_EQ(GetDetail(one.status())->worker, "owner1");
  EXPECT_EQ(First(w_), 9);
  EXPECT_EQ(First(b_), 5);

  StepOutcome both = optimizer->StepDetailed(context);  // w has a new version too
  EXPECT_THAT(both.status().message(),
              AllOf(HasSubstr("owner0 (FAILED_PRECONDITION"), HasSubstr("owner1 (FAILED_"),
                    HasSubstr("it was applied on no owner")));
}

TEST_F(OptimizerTest, CheckFirstAppliesNothingWhenOneOwnerRefuses) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(0);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}, settings));
  Context context = Collect(*trainer_, {{w_, 1}, {b_, 1}});
  Must(trainer_->Assign(b_, Tensor::Of<float>({2}, {5, 5})));
  StepOptions careful;
  careful.check_first = true;
  StepOutcome outcome = optimizer->StepDetailed(context, careful);
  EXPECT_THAT(outcome.status().message(),
              AllOf(HasSubstr("failed on owner1"), HasSubstr("applied on no owner"),
                    Not(HasSubstr("owner0"))));
  EXPECT_TRUE(outcome.owners[0].held_back);
  EXPECT_EQ(First(w_), 10);
  EXPECT_EQ(First(b_), 5);
  Context fresh = Collect(*trainer_, {{w_, 1}, {b_, 1}});
  EXPECT_TRUE(optimizer->Step(fresh, careful).ok());
  EXPECT_EQ(First(w_), 9);
}

TEST_F(OptimizerTest, RetryFailedAppliesOnceWhereItFailed) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}));
  Context context = Collect(*trainer_, {{w_, 1}, {b_, 1}});
  StepOutcome outcome;
  {
    HeldParameter held(owner1_, b_);
    StepOptions hasty;
    hasty.timeout = absl::Milliseconds(300);
    outcome = optimizer->StepDetailed(context, hasty);
    EXPECT_EQ(outcome.owners[1].status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  while (!outcome.status().ok()) outcome = optimizer->RetryFailed(outcome);
  EXPECT_EQ(First(w_), 9);
  EXPECT_EQ(First(b_), 9);
  ASSERT_EQ(outcome.owners.size(), 2u);
  EXPECT_TRUE(optimizer->RetryFailed(outcome).status().ok());
  EXPECT_EQ(First(b_), 9);
  EXPECT_EQ(optimizer->RetryFailed(StepOutcome{}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(OptimizerTest, RetryFailedAppliesOnceHoweverManyStepsCameBetween) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", kSgd1, {w_, b_}));
  Context context = Collect(*trainer_, {{w_, 1}, {b_, 1}});
  StepOutcome outcome = optimizer->StepDetailed(context);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  auto other = StartOther("trainer1");
  auto theirs = Must(DistributedOptimizer::Create(
      *other, "main", kSgd1,
      std::vector<RRef>{Must(other->Lookup("owner0", "w")), Must(other->Lookup("owner1", "b"))}));
  Context nothing = Collect(*other, {{Must(other->Lookup("owner0", "w")), 0}});
  for (int i = 0; i < 4100; ++i) ASSERT_TRUE(theirs->Step(nothing).ok());
  outcome.owners[0].status = absl::UnavailableError("as if its answer had been lost");
  EXPECT_TRUE(optimizer->RetryFailed(outcome).status().ok());
  EXPECT_EQ(First(w_), 9);
  EXPECT_EQ(First(b_), 9);
}

TEST_F(OptimizerTest, AnOwnerThatDiesMidStepIsNamedAndTheOthersHaveStepped) {
  auto dying = std::make_unique<TestOwner>("dying");
  auto trainer = StartTrainer("trainer1", {owner0_.address(), dying->address()});
  RRef w = Must(trainer->Lookup("owner0", "w"));
  RRef p = MakeParameter(*trainer, "dying", "p", Tensor::Of<float>({2}, {1, 1}));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer, kSgd1, {w, p}));
  Context context = Collect(*trainer, {{w, 1}, {p, 1}});
  StepOutcome outcome;
  {
    auto held = std::make_unique<HeldParameter>(*dying, p);
    std::thread step([&] { outcome = optimizer->StepDetailed(context); });
    while (First(w_) != 9) std::this_thread::yield();
    dying->runtime().Shutdown(absl::ZeroDuration());
    step.join();
  }
  EXPECT_FALSE(outcome.status().ok());
  EXPECT_THAT(outcome.status().message(),
              AllOf(HasSubstr("failed on dying"), HasSubstr("it was applied on owner0")));
  EXPECT_TRUE(outcome.owners[0].status.ok());
}

}  // namespace
}  // namespace psd
