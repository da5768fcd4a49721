// DistributedOptimizer against owners in the same process: which parameters a step moves, and by
// which gradients.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/runtime/runtime.h"
#include "core/services/calls/functions.h"
#include "core/services/values/value_service.h"
#include "core/store/value.h"
#include "core/tensor/ops/cast.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/optimizer_fixture.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(OptimizerTest, OPT_01_OnePartPerOwnerInOrderOfFirstAppearance) {
  RRef second = Make("owner1", "second", 0), third = Make("owner0", "third", 0);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {b_, w_, second, third}));
  Context context = Collect(*trainer_, {{w_, 1}, {b_, 1}, {second, 1}, {third, 1}});
  StepOutcome outcome = optimizer->StepDetailed(context);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  ASSERT_EQ(outcome.owners.size(), 2u);
  EXPECT_EQ(outcome.owners[0].owner, "owner1");
  EXPECT_EQ(outcome.owners[1].owner, "owner0");
  EXPECT_EQ(outcome.owners[0].parameters_stepped, 2);
}

TEST_F(OptimizerTest, OPT_02_ParametersMayBeTheTrainersOwn) {
  RRef mine = Make("trainer0", "mine", 1);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {mine, w_}));
  ASSERT_TRUE(optimizer->Step(Collect(*trainer_, {{mine, 0.5}, {w_, 1}})).ok());
  EXPECT_EQ(First(mine), 0.5f);
  EXPECT_EQ(First(w_), 9);
}

TEST_F(OptimizerTest, OPT_04_SeveralOwnersEqualOne) {
  const std::vector<OptimizerSpec> specs = {
      {"adagrad", {}},
      {"adam", {{"amsgrad", 1}}},
      {"adamw", {{"amsgrad", 1}}},
      {"sgd", {}},
      {"sgd", {{"momentum", 0.9}, {"weight_decay", 0.1}, {"nesterov", 1}}},
      {"adadelta", {}},
      {"rmsprop", {{"centered", 1}}},
      {"adamax", {}},
      {"rprop", {}},
  };
  int number = 0;
  for (const OptimizerSpec& spec : specs) {
    const std::string prefix = absl::StrCat(spec.type, number++);
    RRef a0 = Make("owner0", prefix + "/a0", 1), a1 = Make("owner0", prefix + "/a1", 2);
    RRef s0 = Make("owner0", prefix + "/s0", 1), s1 = Make("owner1", prefix + "/s1", 2);
    auto alone = Must(DistributedOptimizer::Create(*trainer_, spec, {a0, a1}));
    auto spread = Must(DistributedOptimizer::Create(*trainer_, spec, {s0, s1}));
    for (int i = 0; i < 3; ++i) {
      const double g = 0.5 + i, h = 2 - i;
      ASSERT_TRUE(alone->Step(Collect(*trainer_, {{a0, g}, {a1, h}})).ok());
      ASSERT_TRUE(spread->Step(Collect(*trainer_, {{s0, g}, {s1, h}})).ok());
    }
    EXPECT_EQ(First(a0), First(s0)) << spec.type;
    EXPECT_EQ(First(a1), First(s1)) << spec.type;
  }
}

TEST_F(OptimizerTest, ManySmallHalvesAreNotLostInOneContextOrInSeveral) {
  const Tensor one = Must(ops::Cast(Tensor::Of<float>({1}, {1}), DType::kBF16));
  RRef half = MakeParameter(*trainer_, "owner0", "half", Must(Tensor::Zeros({1}, DType::kBF16)));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {half}));
  const auto collect = [&](int gradients) {
    Context context = Must(trainer_->NewContext());
    for (int i = 0; i < gradients; ++i) EXPECT_TRUE(context.PushGradient(half, one, 0).ok());
    return context;
  };
  const auto read = [&] {
    const Values values = Must(trainer_->ToHere({half}));
    return Must(ops::Cast(values[0].As<Variable>()->tensor(), DType::kF32)).data<float>()[0];
  };
  const Context alone = collect(512);
  EXPECT_EQ(Must(ops::Cast(Must(alone.Gradient(half)), DType::kF32)).data<float>()[0], 512);
  ASSERT_TRUE(optimizer->Step(alone).ok());
  EXPECT_EQ(read(), -512);
  // In bf16, 256 and 258 are neighbours: the sum of each context is not rounded separately.
  Must(trainer_->Assign(half, Must(Tensor::Zeros({1}, DType::kBF16))));
  const Context a = collect(257), b = collect(257), c = collect(257);
  const StepOutcome outcome = optimizer->StepDetailed({&a, &b, &c});
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_EQ(read(), -772);  // 771, rounded once
}

TEST_F(OptimizerTest, OPT_07_GradientsBelongToTheirParametersWhateverHasNone) {
  RRef first = Make("owner0", "first", 1), second = Make("owner0", "second", 1);
  RRef alone = Make("owner0", "alone", 1);
  const OptimizerSpec spec{"adagrad", {{"lr", 0.1}, {"lr_decay", 0.5}}};
  auto both = Must(DistributedOptimizer::Create(*trainer_, spec, {first, second}));
  auto one = Must(DistributedOptimizer::Create(*trainer_, spec, {alone}));
  for (const double g : {3.0, -1.0}) {
    ASSERT_TRUE(both->Step(Collect(*trainer_, {{second, g}})).ok());
    ASSERT_TRUE(one->Step(Collect(*trainer_, {{alone, g}})).ok());
  }
  EXPECT_EQ(First(first), 1) << "it never had a gradient";
  EXPECT_EQ(First(second), First(alone));
}

TEST_F(OptimizerTest, OPT_16_OPT_17_ContextsKeepTheirGradientsToThemselves) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}));
  Context first = Collect(*trainer_, {{w_, 1}, {b_, 1}});
  ASSERT_TRUE(optimizer->Step(first).ok());
  EXPECT_THAT(Elements(Must(first.Gradient(w_))), ElementsAre(1, 1));
  Context second = Collect(*trainer_, {{w_, 2}});
  ASSERT_TRUE(optimizer->Step(second).ok());
  EXPECT_EQ(First(w_), 7);
  EXPECT_EQ(First(b_), 9) << "stepped again with an old gradient";
}

TEST_F(OptimizerTest, TwoContextsWithGradientsAtOneOwnerAreSteppedApart) {
  const RRef v = Make("owner0", "v", 20);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, v}));
  const Context first = Collect(*trainer_, {{w_, 1}, {v, 2}});
  const Context second = Collect(*trainer_, {{w_, 4}, {v, 8}});
  ASSERT_TRUE(optimizer->Step(first).ok());
  EXPECT_EQ(First(w_), 9);
  EXPECT_EQ(First(v), 18);
  EXPECT_THAT(Elements(Must(second.Gradient(w_))), ElementsAre(4, 4));
  EXPECT_THAT(Elements(Must(second.Gradient(v))), ElementsAre(8, 8));
  ASSERT_TRUE(optimizer->Step(second).ok());
  EXPECT_EQ(First(w_), 5);
  EXPECT_EQ(First(v), 10);
  EXPECT_THAT(Elements(Must(first.Gradient(w_))), ElementsAre(1, 1));
  EXPECT_THAT(Elements(Must(first.Gradient(v))), ElementsAre(2, 2));
}

TEST_F(OptimizerTest, AVariableOfOneContextInAnotherIsAnErrorThatNamesBothAndHarmsNotTheFirst) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_}));
  Context first = Must(trainer_->NewContext()), second = Must(trainer_->NewContext());
  const Variable of_first = Must(trainer_->ToHere({w_}, first))[0];
  const Variable of_second = Must(trainer_->ToHere({w_}, second))[0];
  for (const Variable& loss : {Sum(of_first * of_second), Sum(of_first)}) {
    const absl::Status mixed = second.Backward({loss});
    EXPECT_EQ(mixed.code(), absl::StatusCode::kInvalidArgument) << mixed;
    EXPECT_THAT(mixed.message(),
                AllOf(HasSubstr(first.id().ToString()), HasSubstr(second.id().ToString())));
  }
  EXPECT_FALSE(first.Gradient(w_).ok()) << "no pass of the first context has run";
  ASSERT_TRUE(first.Backward({Sum(of_first)}).ok());
  ASSERT_TRUE(optimizer->Step(first).ok());
  EXPECT_EQ(First(w_), 9);
}

TEST_F(OptimizerTest, OPT_18_AnOptimizerWithoutParametersIsRefused) {
  const auto code = [&](const std::vector<ParameterGroup>& groups) {
    return DistributedOptimizer::Create(*trainer_, kSgd1, groups).status().code();
  };
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{{}, {}}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{{}, {}}, {{}, {}}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{{}, {}}, {{w_}, {}}}), absl::StatusCode::kOk) << "one group has some";
}

TEST_F(OptimizerTest, OPT_45_ASingleParameterWithoutGradientIsNoError) {
  for (const OptimizerSpec& spec : {kSgd1, OptimizerSpec{"adam", {}}}) {
    auto optimizer = Must(DistributedOptimizer::Create(*trainer_, spec, {w_}));
    EXPECT_TRUE(optimizer->Step(Must(trainer_->NewContext())).ok());
    EXPECT_TRUE(optimizer->Step(Collect(*trainer_, {{b_, 1}})).ok());
    EXPECT_EQ(First(w_), 10);
  }
}

// A step of one trainer does not change the values that another trainer's pending backward uses.
TEST_F(OptimizerTest, OPT_50_AStepLeavesPendingBackwardsOfOthersAlone) {
  auto other = StartOther("trainer1");
  RRef w = Must(other->Lookup("owner0", "w"));
  Context pending = Must(other->NewContext());
  auto values = Must(other->ToHere({w}, pending));
  Variable loss = Sum(values[0] * values[0]);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_}));
  ASSERT_TRUE(optimizer->Step(Collect(*trainer_, {{w_, 1}})).ok());
  ASSERT_TRUE(pending.Backward({loss}).ok());
  EXPECT_THAT(Elements(Must(pending.Gradient(w))), ElementsAre(20, 20));
}

TEST_F(OptimizerTest, ANullContextIsRefused) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}));
  Context context = Collect(*trainer_, {{w_, 1}});
  const std::vector<const Context*> contexts = {&context, nullptr};
  EXPECT_EQ(optimizer->StepDetailed(contexts).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(First(w_), 10);
}

TEST_F(OptimizerTest, AccumulatesOverContexts) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}));
  Context first = Collect(*trainer_, {{w_, 1}, {b_, 2}});
  Context second = Collect(*trainer_, {{w_, 3}});
  StepOutcome outcome = optimizer->StepDetailed({&first, &second});
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_EQ(outcome.owners[0].steps_accepted, 1u);
  EXPECT_EQ(First(w_), 6);
  EXPECT_EQ(First(b_), 8);
  StepOptions mean;
  mean.mean_of_contexts = true;
  ASSERT_TRUE(optimizer->StepDetailed({&first, &second}, mean).status().ok());
  EXPECT_EQ(First(w_), 4);
  EXPECT_EQ(First(b_), 7);
  EXPECT_EQ(optimizer->StepDetailed(std::vector<const Context*>{}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(NestedCallTest, AnOwnerThatWasReachedThroughAnotherOnlyIsSteppedToo) {
  worker::RuntimeOptions options;
  const auto fetch = [](const services::FunctionCall& call,
                        const store::Values& arguments) -> absl::StatusOr<store::Values> {
    return call.ToHere({RRef::FromValue(arguments[0])});
  };
  ASSERT_TRUE(options.functions.Register("fetch", fetch).ok());
  TestOwner owner0("owner0", std::move(options)), owner1("owner1");
  owner0.runtime().agent().AddPeer("owner1", owner1.address().address);
  auto trainer = StartTrainer("trainer0", {owner0.address(), owner1.address()});
  const RRef w = MakeParameter(*trainer, "owner0", "w", Tensor::Of<float>({1}, {10})),
             b = MakeParameter(*trainer, "owner1", "b", Tensor::Of<float>({1}, {10}));
  auto optimizer = Must(DistributedOptimizer::Create(*trainer, kSgd1, std::vector<RRef>{w, b}));
  Context context = Must(trainer->NewContext());
  CallOptions recorded;
  recorded.context = &context;
  const Values got =
      Must(trainer->RpcSync("owner0", Function::Registered("fetch"), {Value(b)}, recorded));
  ASSERT_TRUE(context.Backward({Sum(*got[0].As<Variable>())}).ok());
  const StepOutcome outcome = optimizer->StepDetailed(context);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_EQ(Read(*trainer, b)[0], 9);
  EXPECT_EQ(Read(*trainer, w)[0], 10);
}

}  // namespace
}  // namespace psd
