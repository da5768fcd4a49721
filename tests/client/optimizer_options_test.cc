// Options and schedules of an optimizer are the same on all of its owners.

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/runtime/runtime.h"
#include "core/services/optimizers/optimizer_service.h"
#include "core/services/values/value_service.h"
#include "gtest/gtest.h"
#include "tests/client/optimizer_fixture.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

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
  worker::Runtime& runtime = RuntimeOf(*trainer);
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

// The lead's part was dropped and created again before any step, so it counts from the beginning.
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

}  // namespace
}  // namespace psd
