// Training through the public API gives the same gradients and steps as the same math in one
// process.

#include <atomic>
#include <thread>
#include <vector>

#include "client/psd.h"
#include "client/runtime_of.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

class TrainTest : public ::testing::Test {
 protected:
  TestOwner owner0_{"owner0"};
  TestOwner owner1_{"owner1"};
  std::unique_ptr<Worker> trainer_ =
      StartTrainer("trainer0", {owner0_.address(), owner1_.address()});
};

TEST_F(TrainTest, DAG_23_GradientsOfParametersAreKeptByTheirOwner) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({2}, {1, 2}));
  Context context = Must(trainer_->NewContext());
  auto values = Must(trainer_->ToHere({w}, context));
  Variable loss = Sum(values[0] * values[0]);
  ASSERT_TRUE(context.Backward({loss}).ok());
  EXPECT_THAT(Elements(Must(context.Gradient(w))), ElementsAre(2, 4));
}

TEST_F(TrainTest, DAG_24_TwoFetchesOfOneParameterAddUp) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {3}));
  Context context = Must(trainer_->NewContext());
  auto first = Must(trainer_->ToHere({w}, context));
  auto second = Must(trainer_->ToHere({w}, context));
  ASSERT_TRUE(context.Backward({Sum(first[0] * second[0])}).ok());
  EXPECT_THAT(Elements(Must(context.Gradient(w))), ElementsAre(6));
}

TEST_F(TrainTest, DAG_41_AResultThatTheLossIgnoresCostsNothingAndHangsNobody) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {3}));
  RRef unused = MakeParameter(*trainer_, "owner1", "unused", Tensor::Of<float>({1}, {3}));
  Context context = Must(trainer_->NewContext());
  auto values = Must(trainer_->ToHere({w, unused}, context));
  ASSERT_TRUE(context.Backward({Sum(values[0])}).ok());
  EXPECT_THAT(Elements(Must(context.Gradient(w))), ElementsAre(1));
  EXPECT_EQ(context.Gradient(unused).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(TrainTest, DAG_12_CallsWithGradientsEqualLocalAutograd) {
  Variable x(Tensor::Of<float>({2}, {1, -2}), /*requires_grad=*/true);
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({2}, {5, 7}));
  Context context = Must(trainer_->NewContext());
  CallOptions in_context;
  in_context.context = &context;
  Values product = Must(
      trainer_->RpcSync("owner0", Function::Operator("mul", 2),
                        {x, std::shared_ptr<const store::RemoteReference>(w.body())}, in_context));
  Variable loss = Sum(*product[0].As<Variable>() * 2.0);
  ASSERT_TRUE(context.Backward({loss}).ok());
  EXPECT_THAT(Elements(Must(context.Gradient(x))), ElementsAre(10, 14));
  EXPECT_THAT(Elements(Must(context.Gradient(w))), ElementsAre(2, -4));
}

TEST_F(TrainTest, OPT_03_AStepAppliesTheContextsGradientsOnEveryOwner) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({2}, {1, 2}));
  RRef b = MakeParameter(*trainer_, "owner1", "b", Tensor::Of<float>({1}, {3}));
  Sgd sgd;
  sgd.lr = 0.5;
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {w, b}));
  Context context = Must(trainer_->NewContext());
  auto values = Must(trainer_->ToHere({w, b}, context));
  ASSERT_TRUE(context.Backward({Sum(values[0]) + Sum(values[1] * 4.0)}).ok());
  StepOutcome outcome = optimizer->StepDetailed(context);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  ASSERT_EQ(outcome.owners.size(), 2u);
  EXPECT_EQ(outcome.owners[0].parameters_stepped, 1);
  EXPECT_THAT(Read(*trainer_, w), ElementsAre(0.5, 1.5));
  EXPECT_THAT(Read(*trainer_, b), ElementsAre(1));
}

TEST_F(TrainTest, OPT_05_AParameterWithoutGradientIsUntouched) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {1}));
  RRef unused = MakeParameter(*trainer_, "owner0", "unused", Tensor::Of<float>({1}, {1}));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Adam{}, {unused, w}));
  Context context = Must(trainer_->NewContext());
  auto values = Must(trainer_->ToHere({w}, context));
  ASSERT_TRUE(context.Backward({Sum(values[0])}).ok());
  ASSERT_TRUE(optimizer->Step(context).ok());
  EXPECT_THAT(Read(*trainer_, unused), ElementsAre(1));
  EXPECT_NE(Read(*trainer_, w), std::vector<float>{1});
}

TEST_F(TrainTest, OPT_08_AReleasedContextFailsBeforeAnyOwnerIsAsked) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {1}));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{}, {w}));
  Context context = Must(trainer_->NewContext());
  RuntimeOf(*trainer_).autograd().Release(context.id());
  EXPECT_EQ(optimizer->Step(context).code(), absl::StatusCode::kNotFound);
}

TEST_F(TrainTest, ANamedOptimizerIsSharedAndItsCreatorsMustAgree) {
  auto other = StartTrainer("trainer1", {owner0_.address(), owner1_.address()});
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {1}));
  RRef theirs = Must(other->Lookup("owner0", "w"));
  auto mine = Must(DistributedOptimizer::Create(*trainer_, "main", Adam{}, {w}));
  EXPECT_TRUE(DistributedOptimizer::Create(*other, "main", Adam{}, {theirs}).ok());
  Adam faster;
  faster.lr = 0.5;
  absl::Status refused = DistributedOptimizer::Create(*other, "main", faster, {theirs}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("owner0"));
}

TEST_F(TrainTest, OPT_23_BadOptionsAndParametersAreRefusedAtConstruction) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {1}));
  Sgd negative;
  negative.lr = -1;
  EXPECT_EQ(DistributedOptimizer::Create(*trainer_, negative, {w}).status().code(),
            absl::StatusCode::kInvalidArgument);
  OptimizerSpec unknown{"adam", {{"beta3", 0.5}}};
  EXPECT_EQ(DistributedOptimizer::Create(*trainer_, unknown, {w}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DistributedOptimizer::Create(*trainer_, Sgd{}, {w, w}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(TrainTest, OPT_14_ConcurrentTrainersLoseNoUpdate) {
  constexpr int kTrainers = 24;
  constexpr int kSteps = 5;
  MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({4}, {0, 0, 0, 0}));
  Sgd sgd;
  sgd.lr = 1;
  std::vector<std::thread> threads;
  for (int t = 0; t < kTrainers; ++t) {
    threads.emplace_back([&, t] {
      auto trainer = StartTrainer(absl::StrCat("worker", t), {owner0_.address()});
      RRef w = Must(trainer->Lookup("owner0", "w"));
      auto optimizer = Must(DistributedOptimizer::Create(*trainer, "main", sgd, {w}));
      for (int step = 0; step < kSteps; ++step) {
        Context context = Must(trainer->NewContext());
        auto values = Must(trainer->ToHere({w}, context));
        EXPECT_TRUE(context.Backward({Sum(values[0])}).ok());
        EXPECT_TRUE(optimizer->Step(context).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  RRef w = Must(trainer_->Lookup("owner0", "w"));
  EXPECT_THAT(Read(*trainer_, w),
              Pointwise(FloatNear(0), std::vector<float>(4, -kTrainers * kSteps)));
}

TEST_F(TrainTest, ContextsEndWithTheirScopeOnEveryWorker) {
  RRef w = MakeParameter(*trainer_, "owner0", "w", Tensor::Of<float>({1}, {1}));
  {
    Context context = Must(trainer_->NewContext());
    auto values = Must(trainer_->ToHere({w}, context));
    ASSERT_TRUE(context.Backward({Sum(values[0])}).ok());
    EXPECT_EQ(owner0_.runtime().autograd().stats().contexts, 1u);
  }
  while (owner0_.runtime().autograd().stats().contexts > 0) std::this_thread::yield();
  EXPECT_EQ(RuntimeOf(*trainer_).autograd().stats().contexts, 0u);
}

}  // namespace
}  // namespace psd
