// DistributedOptimizer against owners in the same process: the effects of a step on several owners,
// and the state that a failed step leaves behind.

#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/worker/functions.h"
#include "core/worker/optimizer_service.h"
#include "core/worker/runtime.h"
#include "core/worker/status_service.h"
#include "core/worker/value_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/core/picky_carrier.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const OptimizerSpec kSgd1{"sgd", {{"lr", 1}}};

// Makes a context in which every element of each parameter has the gradient given for it.
Context Collect(Worker& worker, const std::vector<std::pair<RRef, double>>& gradients) {
  Context context = Must(worker.NewContext());
  std::vector<RRef> parameters;
  for (const auto& [parameter, gradient] : gradients) parameters.push_back(parameter);
  auto values = Must(worker.ToHere(parameters, context));
  std::vector<Variable> roots;
  for (size_t i = 0; i < values.size(); ++i) roots.push_back(Sum(values[i] * gradients[i].second));
  Variable loss = roots[0];
  for (size_t i = 1; i < roots.size(); ++i) loss = loss + roots[i];
  absl::Status done = context.Backward({loss});
  EXPECT_TRUE(done.ok()) << done;
  return context;
}

class OptimizerTest : public ::testing::Test {
 protected:
  RRef Make(const std::string& owner, const std::string& name, float value) {
    return MakeParameter(*trainer_, owner, name, Tensor::Of<float>({2}, {value, value}));
  }
  float First(const RRef& rref) { return Read(*trainer_, rref)[0]; }
  std::unique_ptr<Worker> StartOther(const std::string& name) {
    return StartTrainer(name, {owner0_.address(), owner1_.address()});
  }
  // Creates or joins the optimizer "main" of both parameters from `worker`.
  std::unique_ptr<DistributedOptimizer> Shared(Worker& worker, const OptimizerSettings& settings) {
    return Must(DistributedOptimizer::Create(
        worker, "main", kSgd1,
        std::vector<RRef>{Must(worker.Lookup("owner0", "w")), Must(worker.Lookup("owner1", "b"))},
        settings));
  }

  TestOwner owner0_{"owner0"};
  TestOwner owner1_{"owner1"};
  std::unique_ptr<Worker> trainer_ =
      StartTrainer("trainer0", {owner0_.address(), owner1_.address()});
  RRef w_ = Make("owner0", "w", 10), b_ = Make("owner1", "b", 10);
};

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

TEST_F(OptimizerTest, OPT_48_GroupsAndOptionsThatChangeOnAllOwners) {
  auto other = StartOther("trainer1");
  RRef w = Must(other->Lookup("owner0", "w")), b = Must(other->Lookup("owner1", "b"));
  RRef extra = Make("owner1", "extra", 10);
  const auto make = [](Worker& worker, const RRef& w, const RRef& b, const RRef& extra) {
    return Must(DistributedOptimizer::Create(
        worker, "grouped", kSgd1,
        std::vector<ParameterGroup>{{{w, b}, {}}, {{extra}, {{"lr", 0.5}}}}));
  };
  auto mine = make(*trainer_, w_, b_, extra);
  auto theirs = make(*other, w, b, Must(other->Lookup("owner1", "extra")));
  ASSERT_TRUE(mine->Step(Collect(*trainer_, {{w_, 1}, {b_, 1}, {extra, 1}})).ok());
  EXPECT_EQ(First(b_), 9);
  EXPECT_EQ(First(extra), 9.5f);

  ASSERT_TRUE(mine->SetOptions(0, {{"lr", 2}}).ok());
  ASSERT_TRUE(mine->SetOptions(1, {{"lr", 4}, {"weight_decay", 0}}).ok());
  ASSERT_TRUE(mine->Step(Collect(*trainer_, {{w_, 1}, {b_, 1}, {extra, 1}})).ok());
  EXPECT_EQ(First(w_), 7);
  EXPECT_EQ(First(b_), 7);
  EXPECT_EQ(First(extra), 5.5f);
  EXPECT_EQ(Must(theirs->Options(1)).options.at("lr"), 4);

  EXPECT_EQ(mine->SetOptions(2, {{"lr", 1}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(mine->SetOptions(0, {{"lr", -1}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(mine->SetOptions(0, {{"momentum", 0.9}}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Must(mine->Options(0)).options.at("lr"), 2);
}

// Not every step reaches owner1, but all owners use the same count of steps.
TEST_F(OptimizerTest, OPT_48_AScheduleIsOneForAllOwners) {
  OptimizerSettings settings;
  settings.schedule = Schedule::Exponential(0.5);
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}, settings));
  ASSERT_TRUE(optimizer->Step(Collect(*trainer_, {{w_, 1}})).ok());           // learning rate 1
  ASSERT_TRUE(optimizer->Step(Collect(*trainer_, {{b_, 1}})).ok());           // 0.5
  ASSERT_TRUE(optimizer->Step(Collect(*trainer_, {{w_, 1}, {b_, 1}})).ok());  // 0.25
  EXPECT_EQ(First(w_), 8.75f);
  EXPECT_EQ(First(b_), 9.25f);
}

TEST_F(OptimizerTest, TheOrderOfParametersMakesNoOtherLead) {
  auto other = StartOther("trainer1");
  OptimizerSettings settings;
  settings.loss_scaling = LossScaling::Dynamic(8);
  auto mine = Must(DistributedOptimizer::Create(*trainer_, "main", kSgd1, {w_, b_}, settings));
  auto theirs = Must(DistributedOptimizer::Create(
      *other, "main", kSgd1,
      std::vector<RRef>{Must(other->Lookup("owner1", "b")), Must(other->Lookup("owner0", "w"))},
      settings));
  // The trainers set the option in turn, and the last setting holds on all owners.
  for (const double lr : {2, 4, 8}) {
    ASSERT_TRUE(theirs->SetOptions(0, {{"lr", 0.5 * lr}}).ok());
    ASSERT_TRUE(mine->SetOptions(0, {{"lr", lr}}).ok());
    EXPECT_EQ(Must(theirs->Options()).options.at("lr"), lr);
  }
  StepOptions scaled;
  scaled.loss_scale = 8;
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(mine->StepDetailed(Collect(*trainer_, {{w_, infinity}}), scaled).skipped);
  RRef w = Must(other->Lookup("owner0", "w"));
  scaled.loss_scale = 4;
  EXPECT_TRUE(theirs->StepDetailed(Collect(*other, {{w, infinity}}), scaled).skipped);
  EXPECT_EQ(theirs->LossScale(), 2);
  scaled.loss_scale = 2;
  ASSERT_TRUE(mine->StepDetailed(Collect(*trainer_, {{w_, 0.5}, {b_, 0.5}}), scaled).status().ok());
  EXPECT_EQ(First(w_), 8);
  EXPECT_EQ(First(b_), 8);
}

TEST(NestedCallTest, AnOwnerThatWasReachedThroughAnotherOnlyIsSteppedToo) {
  worker::RuntimeOptions options;
  const auto fetch = [](const worker::FunctionCall& call,
                        const worker::Values& arguments) -> absl::StatusOr<worker::Values> {
    const std::vector<RRef> wanted = {RRef::FromValue(arguments[0])};
    return call.runtime.values().Fetch(wanted, call.context, {}).Wait();
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

TEST(LeadTest, OptionsThatAFollowerRefusesChangeNowhere) {
  TestOwner lead("owner0");
  TestOwner follower("owner1");
  auto trainer = StartTrainer("trainer", {lead.address(), follower.address()});
  CreateOptions rows;
  rows.requires_grad = true;
  rows.rows = true;
  const std::vector<RRef> parameters = {
      MakeParameter(*trainer, "owner0", "w", Tensor::Of<float>({1}, {10})),
      Must(trainer->GetOrCreate("owner1", "table", Zeros({3, 1}), rows))};
  auto optimizer = Must(DistributedOptimizer::Create(*trainer, "main", kSgd1, parameters));
  EXPECT_EQ(optimizer->SetOptions(0, {{"weight_decay", 0.5}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Must(optimizer->Options()).options.at("weight_decay"), 0);
  EXPECT_TRUE(optimizer->SetOptions(0, {{"lr", 0.5}}).ok());
  auto other = StartTrainer("other", {lead.address(), follower.address()});
  EXPECT_TRUE(DistributedOptimizer::Create(
                  *other, "main", kSgd1,
                  {Must(other->Lookup("owner0", "w")), Must(other->Lookup("owner1", "table"))})
                  .ok());
}

// A trainer died between the lead's decision and the refusal of a follower.
TEST(LeadTest, OptionsThatAFollowerRefusesAreTakenBackByWhoeverCreatesItNext) {
  TestOwner lead("owner0");
  TestOwner follower("owner1");
  auto trainer = StartTrainer("trainer", {lead.address(), follower.address()});
  CreateOptions rows;
  rows.requires_grad = true;
  rows.rows = true;
  const std::vector<RRef> parameters = {
      MakeParameter(*trainer, "owner0", "w", Tensor::Of<float>({1}, {10})),
      Must(trainer->GetOrCreate("owner1", "table", Zeros({3, 1}), rows))};
  auto optimizer = Must(DistributedOptimizer::Create(*trainer, "main", kSgd1, parameters));
  ASSERT_TRUE(optimizer->SetOptions(0, {{"lr", 0.5}}).ok());
  worker::Runtime& runtime = trainer->runtime();
  const RRef part = Must(runtime.values().Lookup("owner0", "main", {}).Wait());
  const GlobalId life = Must(runtime.optimizer_service().Part("owner0", "main", {}).Wait()).life.id;
  Must(
      runtime.optimizer_service().SetOptions(part, 0, {{"weight_decay", 0.5}}, 0, life, {}).Wait());
  ASSERT_EQ(Must(optimizer->Options()).options.at("weight_decay"), 0.5);
  auto next = Must(DistributedOptimizer::Create(*trainer, "main", kSgd1, parameters));
  EXPECT_EQ(Must(next->Options()).options.at("weight_decay"), 0);
  EXPECT_EQ(Must(next->Options()).options.at("lr"), 0.5);
  EXPECT_TRUE(next->SetOptions(0, {{"lr", 0.25}}).ok());
}

// Its part was dropped and made anew before anything was stepped, so it counts from the beginning.
TEST(LeadTest, ALeadThatHasForgottenItsDecisionsIsReminded) {
  TestOwner lead("owner0"), follower("owner1");
  auto trainer = StartTrainer("trainer", {lead.address(), follower.address()});
  const std::vector<RRef> parameters = {
      MakeParameter(*trainer, "owner0", "w", Tensor::Of<float>({1}, {10})),
      MakeParameter(*trainer, "owner1", "b", Tensor::Of<float>({1}, {10}))};
  const auto create = [&] {
    return Must(DistributedOptimizer::Create(*trainer, "main", kSgd1, parameters));
  };
  {
    auto optimizer = create();
    for (const double lr : {2, 3, 4}) ASSERT_TRUE(optimizer->SetOptions(0, {{"lr", lr}}).ok());
  }
  ASSERT_TRUE(trainer->Drop("owner0", "main").ok());
  auto optimizer = create();
  EXPECT_EQ(Must(optimizer->Options()).options.at("lr"), 4);
  ASSERT_TRUE(optimizer->SetOptions(0, {{"lr", 2}}).ok());
  ASSERT_TRUE(optimizer->Step(Collect(*trainer, {{parameters[0], 1}, {parameters[1], 1}})).ok());
  EXPECT_EQ(Read(*trainer, parameters[0])[0], 8);
  EXPECT_EQ(Read(*trainer, parameters[1])[0], 8);
}

TEST(LeadTest, OptionsChangeEverywhereAfterTheLeadWasStartedAgain) {
  TestOwner follower("owner1");
  auto lead = std::make_unique<TestOwner>("owner0");
  const auto use = [&](Worker& worker) {
    const std::vector<RRef> parameters = {
        MakeParameter(worker, "owner0", "w", Tensor::Of<float>({1}, {10})),
        MakeParameter(worker, "owner1", "b", Tensor::Of<float>({1}, {10}))};
    JoinOptions join;
    join.start_afresh = true;  // the lead has lost its part
    return std::make_pair(parameters, Must(DistributedOptimizer::Create(worker, "main", kSgd1,
                                                                        parameters, {}, join)));
  };
  auto first = StartTrainer("first", {lead->address(), follower.address()});
  {
    auto [parameters, optimizer] = use(*first);
    for (const double lr : {2, 3, 4}) ASSERT_TRUE(optimizer->SetOptions(0, {{"lr", lr}}).ok());
  }
  first.reset();
  lead = std::make_unique<TestOwner>("owner0");
  auto second = StartTrainer("second", {lead->address(), follower.address()});
  auto [parameters, optimizer] = use(*second);
  ASSERT_TRUE(optimizer->Step(Collect(*second, {{parameters[0], 1}, {parameters[1], 1}})).ok());
  EXPECT_EQ(Read(*second, parameters[0])[0], 9);  // both owners use the lr of the creation
  EXPECT_EQ(Read(*second, parameters[1])[0], 9);
  ASSERT_TRUE(optimizer->SetOptions(0, {{"lr", 2}}).ok());
  ASSERT_TRUE(optimizer->Step(Collect(*second, {{parameters[0], 1}, {parameters[1], 1}})).ok());
  EXPECT_EQ(Read(*second, parameters[0])[0], 7);
  EXPECT_EQ(Read(*second, parameters[1])[0], 7);
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

TEST_F(OptimizerTest, ClipsByNormOverAllOwnersAndByValue) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}));
  Context context = Collect(*trainer_, {{w_, 3}, {b_, 4}});  // two elements each
  const double norm = std::sqrt(50.0);
  StepOptions by_norm;
  by_norm.clip_norm = norm / 2;
  StepOutcome outcome = optimizer->StepDetailed(context, by_norm);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_DOUBLE_EQ(outcome.gradient_norm, norm);
  EXPECT_FLOAT_EQ(First(w_), 8.5f);
  EXPECT_FLOAT_EQ(First(b_), 8);
  StepOptions by_value;
  by_value.clip_value = 3.5;
  ASSERT_TRUE(optimizer->Step(context, by_value).ok());
  EXPECT_FLOAT_EQ(First(w_), 5.5f);
  EXPECT_FLOAT_EQ(First(b_), 4.5f);
  StepOptions bad;
  bad.clip_norm = -1;
  EXPECT_EQ(optimizer->Step(context, bad).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(OptimizerTest, GradientsWithoutANormAreRefusedBeforeAnythingChanges) {
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, kSgd1, {w_, b_}));
  Context context = Collect(*trainer_, {{w_, 3}, {b_, std::numeric_limits<double>::infinity()}});
  StepOptions clip;
  clip.clip_norm = 1;
  absl::Status refused = optimizer->Step(context, clip);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("owner1"));
  EXPECT_EQ(First(w_), 10);
}

TEST_F(OptimizerTest, OverflowOnOneOwnerSkipsTheStepOnAll) {
  OptimizerSettings settings;
  settings.loss_scaling = LossScaling::Dynamic(8);
  settings.loss_scaling.growth_interval = 2;
  auto optimizer = Shared(*trainer_, settings);
  ASSERT_EQ(optimizer->LossScale(), 8);
  StepOptions scaled;
  scaled.loss_scale = 8;
  Context overflown = Collect(*trainer_, {{w_, 8}, {b_, std::numeric_limits<double>::infinity()}});
  StepOutcome outcome = optimizer->StepDetailed(overflown, scaled);
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_TRUE(outcome.skipped);
  EXPECT_EQ(First(w_), 10);
  EXPECT_EQ(optimizer->LossScale(), 4);
  scaled.loss_scale = 4;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(optimizer->Step(Collect(*trainer_, {{w_, 4}, {b_, 8}}), scaled).ok());
  }
  EXPECT_EQ(First(w_), 8);
  EXPECT_EQ(First(b_), 6);
  EXPECT_EQ(optimizer->LossScale(), 8);
  auto other = StartOther("trainer1");
  EXPECT_EQ(Shared(*other, settings)->LossScale(), 8) << "a newcomer hears the present scale";
  EXPECT_EQ(optimizer->Step(Collect(*trainer_, {{w_, 1}})).code(),
            absl::StatusCode::kInvalidArgument);
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

// ---- modes

class ModesTest : public OptimizerTest {
 protected:
  // Runs a step of `worker` with these gradients on a thread of its own.
  std::future<StepOutcome> StepAsync(Worker& worker, DistributedOptimizer& optimizer, double w,
                                     double b, const StepOptions& options = {}) {
    return std::async(std::launch::async, [&worker, &optimizer, w, b, options] {
      RRef w_ref = Must(worker.Lookup("owner0", "w")), b_ref = Must(worker.Lookup("owner1", "b"));
      Context context = Collect(worker, {{w_ref, w}, {b_ref, b}});
      return optimizer.StepDetailed(context, options);
    });
  }
  // Returns when `steps` steps wait on each of these owners.
  void AwaitWaiting(uint64_t steps, std::vector<TestOwner*> owners) {
    for (TestOwner* owner : owners) {
      const auto waiting = [&] {
        const auto status = owner->runtime().status().Collect({});
        return status.optimizers_size() == 0 ? 0 : status.optimizers(0).waiting();
      };
      while (waiting() != steps) std::this_thread::yield();
    }
  }
  // At the lead, where all steps of several owners wait for their turns.
  void AwaitWaiting(uint64_t steps) { AwaitWaiting(steps, {&owner0_}); }

  std::unique_ptr<Worker> other_ = StartOther("trainer1");
};

TEST_F(ModesTest, ASynchronousRoundIsOneStepOfAllTrainers) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  for (int round = 1; round <= 3; ++round) {
    auto a = StepAsync(*trainer_, *mine, 1, 0), b = StepAsync(*other_, *theirs, 3, 1);
    StepOutcome outcome = a.get();
    ASSERT_TRUE(outcome.status().ok()) << outcome.status();
    ASSERT_TRUE(b.get().status().ok());
    EXPECT_EQ(outcome.owners[0].trainers, 2);
    EXPECT_EQ(outcome.owners[0].steps_accepted, static_cast<uint64_t>(round));
    EXPECT_EQ(First(w_), 10 - 2 * round);
    EXPECT_EQ(First(b_), 10 - 0.5f * static_cast<float>(round));
  }
}

TEST_F(ModesTest, AMemberWhoseSessionEndsIsDroppedAndNobodyHangs) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  auto a = StepAsync(*trainer_, *mine, 1, 1), b = StepAsync(*other_, *theirs, 1, 1);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  auto alone = StepAsync(*trainer_, *mine, 1, 1);
  AwaitWaiting(1);
  other_.reset();  // its sessions end
  StepOutcome outcome = alone.get();
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_EQ(outcome.owners[0].trainers, 1);
  EXPECT_EQ(First(w_), 7);
  EXPECT_EQ(First(b_), 7);
}

TEST_F(ModesTest, AMemberThatLetsItsOptimizerGoIsNotWaitedFor) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  auto a = StepAsync(*trainer_, *mine, 1, 1), b = StepAsync(*other_, *theirs, 1, 1);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  auto alone = StepAsync(*trainer_, *mine, 1, 1);
  AwaitWaiting(1);
  theirs.reset();
  EXPECT_TRUE(alone.get().status().ok());
  EXPECT_EQ(First(w_), 7);
}

TEST_F(ModesTest, WhoGivesUpWaitingHasAppliedNothing) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  StepOptions hasty;
  hasty.timeout = absl::Milliseconds(200);
  StepOutcome late = StepAsync(*trainer_, *mine, 1, 1, hasty).get();
  EXPECT_FALSE(late.status().ok());  // the trainer or an owner notices the timeout first
  AwaitWaiting(0);
  auto a = StepAsync(*trainer_, *mine, 2, 2), b = StepAsync(*other_, *theirs, 1, 1);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  EXPECT_EQ(First(w_), 7);
  EXPECT_EQ(First(b_), 7);
}

TEST_F(ModesTest, ARoundIsClippedByTheNormOfItsOwnGradients) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  StepOptions clip;
  clip.clip_norm = std::sqrt(50.0) / 2;
  // The means are 3 and 4, two elements each.
  auto a = StepAsync(*trainer_, *mine, 6, 1, clip), b = StepAsync(*other_, *theirs, 0, 7, clip);
  StepOutcome outcome = a.get();
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  ASSERT_TRUE(b.get().status().ok());
  EXPECT_DOUBLE_EQ(outcome.gradient_norm, std::sqrt(50.0));
  EXPECT_FLOAT_EQ(First(w_), 8.5f);
  EXPECT_FLOAT_EQ(First(b_), 8);
}

TEST_F(ModesTest, OverflowOfOneTrainerSkipsTheRoundForAll) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2);
  settings.loss_scaling = LossScaling::Dynamic(8);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  StepOptions scaled;
  scaled.loss_scale = 8;
  auto a = StepAsync(*trainer_, *mine, 8, 8, scaled);
  auto b = StepAsync(*other_, *theirs, 8, std::numeric_limits<double>::infinity(), scaled);
  EXPECT_TRUE(a.get().skipped);
  EXPECT_TRUE(b.get().skipped);
  EXPECT_EQ(First(w_), 10);
  EXPECT_EQ(mine->LossScale(), 4);
  EXPECT_EQ(theirs->LossScale(), 4);
  scaled.loss_scale = 4;
  a = StepAsync(*trainer_, *mine, 4, 8, scaled);
  b = StepAsync(*other_, *theirs, 4, 0, scaled);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  EXPECT_EQ(First(w_), 9);
  EXPECT_EQ(First(b_), 9);
}

TEST_F(ModesTest, RoundsNeedANameAndAgreement) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2);
  auto mine = Shared(*trainer_, settings);
  EXPECT_EQ(DistributedOptimizer::Create(*trainer_, kSgd1, {w_}, settings).status().code(),
            absl::StatusCode::kInvalidArgument);
  settings.mode.trainers = 3;
  EXPECT_EQ(
      DistributedOptimizer::Create(*trainer_, "main", kSgd1, {w_, b_}, settings).status().code(),
      absl::StatusCode::kFailedPrecondition);
}

TEST_F(ModesTest, PacedTrainersNeverApplyWhatIsTooOld) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::BoundedStaleness(1, UpdateMode::WhenStale::kWait);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  ASSERT_TRUE(StepAsync(*trainer_, *mine, 1, 1).get().status().ok());
  ASSERT_TRUE(StepAsync(*other_, *theirs, 1, 1).get().status().ok());
  auto ahead = StepAsync(*other_, *theirs, 1, 1);
  AwaitWaiting(1, {&owner0_});  // because trainer0 may be computing a gradient
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

// With a bound of 0 not all three trainers can be served, so the order of their steps matters. If
// each of the two owners chose its own order, they would wait for each other.
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
    AwaitWaiting(1, {&owner0_});
    EXPECT_TRUE(other_->Shutdown(absl::ZeroDuration()).ok());
    AwaitWaiting(0, {&owner0_});
  }
  EXPECT_FALSE(holder.get().status().ok());
  waiter.wait();
}

TEST_F(ModesTest, ClippingAfterAMemberHasDiedWaitsForNobody) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  auto a = StepAsync(*trainer_, *mine, 1, 1), b = StepAsync(*other_, *theirs, 1, 1);
  ASSERT_TRUE(a.get().status().ok());
  ASSERT_TRUE(b.get().status().ok());
  other_.reset();
  StepOptions clip;
  clip.clip_norm = 1000;
  StepOutcome outcome = StepAsync(*trainer_, *mine, 1, 1, clip).get();
  ASSERT_TRUE(outcome.status().ok()) << outcome.status();
  EXPECT_EQ(First(w_), 7);
}

// The hasty trainer's question to measure reaches the lead only, so the other one waits for it on
// the follower until it gives the round up.
TEST(LeadTest, AMeasureThatIsCutOffOnOneOwnerLeavesNobodyInAnotherRound) {
  std::atomic<bool> cut{true};
  std::string mark;  // the step's incarnation in the question to measure
  testing::PickyRules rules;
  rules.loses = [&](const carrier::Message& message) {
    return cut && message.header.find("optimizer.prepare") != std::string::npos &&
           message.header.find(mark) != std::string::npos;
  };
  worker::RuntimeOptions picky;
  picky.carrier = std::make_shared<testing::PickyCarrier>(Must(carrier::NewGrpcCarrier({})), rules);
  TestOwner lead("owner0"), follower("owner1", std::move(picky));
  auto hasty = StartTrainer("trainer0", {lead.address(), follower.address()});
  auto patient = StartTrainer("trainer1", {lead.address(), follower.address()});
  const Incarnation incarnation = hasty->runtime().incarnation();
  mark = '\x31' + std::string(reinterpret_cast<const char*>(&incarnation), sizeof(incarnation));
  const auto parameters = [&](Worker& worker) {
    return std::vector<RRef>{MakeParameter(worker, "owner0", "w", Tensor::Of<float>({1}, {10})),
                             MakeParameter(worker, "owner1", "b", Tensor::Of<float>({1}, {10}))};
  };
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  StepOptions clip;
  clip.clip_norm = 1000;
  const auto step = [&](Worker& worker, DistributedOptimizer& optimizer, StepOptions options) {
    return std::async(std::launch::async, [&, options] {
      const RRef w = Must(worker.Lookup("owner0", "w")), b = Must(worker.Lookup("owner1", "b"));
      return optimizer.StepDetailed(Collect(worker, {{w, 1}, {b, 1}}), options);
    });
  };
  const std::vector<RRef> values = parameters(*hasty);
  auto mine = Must(DistributedOptimizer::Create(*hasty, "main", kSgd1, values, settings));
  auto theirs = Must(DistributedOptimizer::Create(
      *patient, "main", kSgd1,
      {Must(patient->Lookup("owner0", "w")), Must(patient->Lookup("owner1", "b"))}, settings));
  StepOptions short_clip = clip;
  short_clip.timeout = absl::Seconds(1);
  auto b = step(*patient, *theirs, clip);
  const Context kept = Collect(*hasty, {{values[0], 1}, {values[1], 1}});  // for the second try
  const StepOutcome cut_off = mine->StepDetailed(kept, short_clip), alone = b.get();
  EXPECT_FALSE(cut_off.status().ok());
  ASSERT_TRUE(alone.status().ok()) << alone.status();
  for (const OwnerOutcome& owner : alone.owners) EXPECT_EQ(owner.trainers, 1) << owner.owner;
  cut = false;
  // Both go on together, with other options, and the failed step is applied when it is tried again.
  for (const StepOptions& options : {StepOptions{}, clip}) {
    auto a = step(*hasty, *mine, options);
    b = step(*patient, *theirs, options);
    EXPECT_EQ(a.get().status(), absl::OkStatus());
    EXPECT_EQ(b.get().status(), absl::OkStatus());
  }
  b = step(*patient, *theirs, clip);
  EXPECT_EQ(mine->RetryFailed(cut_off).status(), absl::OkStatus());
  EXPECT_EQ(b.get().status(), absl::OkStatus());
  for (const RRef& value : values) EXPECT_EQ(Read(*hasty, value)[0], 10 - 1 - 4 - 2);
}

TEST_F(ModesTest, TrainersThatMeasureAndTrainersThatDoNotAreToldSo) {
  OptimizerSettings settings;
  settings.mode = UpdateMode::Synchronous(2, UpdateMode::Reduction::kSum);
  auto mine = Shared(*trainer_, settings), theirs = Shared(*other_, settings);
  StepOptions clip;
  clip.clip_norm = 1000;
  auto measures = StepAsync(*trainer_, *mine, 1, 1, clip);
  AwaitWaiting(1);
  EXPECT_EQ(StepAsync(*other_, *theirs, 1, 1).get().status().code(),
            absl::StatusCode::kFailedPrecondition);
  auto agrees = StepAsync(*other_, *theirs, 1, 1, clip);
  EXPECT_TRUE(measures.get().status().ok());
  EXPECT_TRUE(agrees.get().status().ok());
}

}  // namespace
}  // namespace psd
