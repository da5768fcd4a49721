// Groups, options, schedules, clipping and loss scaling of sharded optimizers.

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/elementwise.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/zero/zero_world.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<Shape> Shapes() {
  return {{7}, {20}, {3}, {64, 3}, {5, 5}, {13}};
}

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

// A plain optimizer over the same groups.
std::unique_ptr<DistributedOptimizer> PlainOver(PlainTrainer& plain, const OptimizerSpec& spec,
                                                const std::vector<ZeroGroup>& groups) {
  std::vector<ParameterGroup> plain_groups;
  for (const ZeroGroup& group : groups) {
    ParameterGroup& each = plain_groups.emplace_back();
    for (const size_t index : group.parameters)
      each.parameters.push_back(plain.replica->values()[index]);
    each.options = group.options;
  }
  return Must(DistributedOptimizer::Create(*plain.worker, spec, plain_groups));
}

TEST(ZeroOptionsTest, ZERO_12_OptionsAndSchedulesTakeEffectAtTheNextStep) {
  ZeroOptions options;
  options.settings.schedule = Schedule::Cosine(6).WithWarmup(2);
  ZeroWorld ranks(2, Model(Shapes()), Adam{}, options);
  PlainTrainer plain(Model(Shapes()), Adam{}, options.settings);
  EXPECT_EQ(Must(ranks.zero[0]->Options()).options.at("beta2"), 0.999) << "with every default";
  for (int step = 0; step < 8; ++step) {
    if (step == 4) {
      ASSERT_TRUE(plain.optimizer->SetOptions(0, {{"lr", 0.1}, {"beta1", 0.8}}).ok());
      for (const auto& zero : ranks.zero)
        ASSERT_TRUE(zero->SetOptions(0, {{"lr", 0.1}, {"beta1", 0.8}}).ok());
      EXPECT_EQ(Must(ranks.zero[1]->Options()).options.at("lr"), 0.1);
    }
    ranks.Step(step);
    plain.Step(Gradients(*plain.replica, step));
    for (const Replica& replica : ranks.replicas) ExpectSameElements(replica, *plain.replica);
  }
  EXPECT_FALSE(ranks.zero[0]->SetOptions(1, {{"lr", 1}}).ok());
  EXPECT_THAT(Text(ranks.zero[0]->SetOptions(0, {{"rl", 1}})), HasSubstr("lr"));
}

TEST(ZeroOptionsTest, ZERO_03_ZERO_16_ZERO_17_AGroupAddedLaterEqualsOneUpFront) {
  const ZeroGroup first{{0, 2, 4}, {}}, second{{5, 1, 3}, {{"lr", 0.05}}};
  ZeroWorld up_front(2, Model(Shapes()), Adam{}, {}, {first, second});
  ZeroWorld later(2, Model(Shapes()), Adam{}, {}, {first});
  PlainTrainer plain(Model(Shapes()));
  plain.optimizer = PlainOver(plain, Adam{}, {first, second});
  const int before = later.zero[0]->RankOf(4);
  later.OnAll([&](int rank) {
    const absl::Status added = later.zero[rank]->AddGroup(second);
    ASSERT_TRUE(added.ok()) << added;
  });
  EXPECT_EQ(later.zero[0]->RankOf(4), before);
  for (size_t i = 0; i < Shapes().size(); ++i)
    EXPECT_EQ(later.zero[1]->RankOf(i), up_front.zero[1]->RankOf(i)) << i;
  for (int step = 0; step < 3; ++step) {
    up_front.Step(step);
    later.Step(step);
    plain.Step(Gradients(*plain.replica, step));
  }
  for (const Replica& replica : up_front.replicas) ExpectSameElements(replica, *plain.replica);
  for (const Replica& replica : later.replicas) ExpectSameElements(replica, *plain.replica);
}

TEST(ZeroOptionsTest, ZERO_17_AnAddedGroupLeavesStateAndOptionsOfTheOthers) {
  const ZeroGroup first{{0, 1, 2}, {}}, second{{3, 4}, {}};
  ZeroWorld ranks(2, Model(Shapes()), Adam{}, {}, {first});
  PlainTrainer plain(Model(Shapes()));
  const auto of_first = PlainOver(plain, Adam{}, {first});
  const auto of_second = PlainOver(plain, Adam{}, {second});
  const auto step = [&](int seed, bool both) {
    const auto gradients = [&](const Replica& replica) {
      std::vector<Tensor> some = Gradients(replica, seed);
      some[5] = Tensor();
      return some;
    };
    ranks.Step([&](int rank) { return gradients(ranks.replicas[rank]); });
    const Context context = WithGradients(*plain.replica, gradients(*plain.replica));
    ASSERT_TRUE(of_first->Step(context).ok());
    if (both) {
      ASSERT_TRUE(of_second->Step(context).ok());
    }
    for (const Replica& replica : ranks.replicas) ExpectSameElements(replica, *plain.replica);
  };
  step(1, false);
  for (const auto& zero : ranks.zero) ASSERT_TRUE(zero->SetOptions(0, {{"lr", 0.5}}).ok());
  ASSERT_TRUE(of_first->SetOptions(0, {{"lr", 0.5}}).ok());
  step(2, false);
  ranks.OnAll([&](int rank) { ASSERT_TRUE(ranks.zero[rank]->AddGroup(second).ok()); });
  EXPECT_EQ(Must(ranks.zero[0]->Options(0)).options.at("lr"), 0.5);
  EXPECT_EQ(ranks.zero[0]->steps(), 2u);
  step(3, true);
  step(4, true);
}

TEST(ZeroOptionsTest, ZERO_14_WrongArgumentsAreRefusedOnEachRankAlone) {
  ReplicaWorld world(2, Model(Shapes()));
  const auto refused = [&](const OptimizerSpec& spec, const std::vector<ZeroGroup>& groups,
                           const ZeroOptions& options = {}) {
    const absl::Status status =
        ZeroRedundancyOptimizer::Create(world.groups[0], world.replicas[0], spec, groups, options)
            .status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return Text(status);
  };
  refused(Adam{}, {});
  EXPECT_THAT(refused(Adam{}, {{{0}, {}}, {{}, {}}}), HasSubstr("group 1 has no parameters"));
  EXPECT_THAT(refused(Adam{}, {{{0, 1, 0}, {}}}), HasSubstr("'p0' is given for the second time"));
  EXPECT_THAT(refused(Adam{}, {{{0, 6}, {}}}), HasSubstr("parameter 6"));
  EXPECT_THAT(refused(Adam{}, {{{0}, {{"rl", 1}}}}), HasSubstr("lr"));
  EXPECT_THAT(refused(SparseAdam{}, {{{0}, {}}}), HasSubstr("p0"));
  std::vector<ReplicaParameter> mixture = Model({{2}, {2}});
  mixture[0].name = "router";
  mixture[1].name = "expert";
  mixture[1].expert = true;
  EXPECT_THAT(
      Text(ZeroRedundancyOptimizer::Create(
               world.groups[0], Must(Replica::Create(*world.world.workers[0], mixture)), Adam{})
               .status()),
      HasSubstr("'expert' is an expert, of which each rank has its own"));
  ZeroOptions rounds;
  rounds.settings.mode = UpdateMode::Synchronous(2);
  EXPECT_THAT(refused(Adam{}, {{{0}, {}}}, rounds), HasSubstr("asynchronous"));
  EXPECT_TRUE(absl::IsInvalidArgument(
      ZeroRedundancyOptimizer::Create(world.groups[0],
                                      Must(Replica::Create(*world.world.workers[0], {})), Adam{})
          .status()));
  for (const auto& group : world.groups) EXPECT_TRUE(group->status().ok()) << "nothing was sent";
}

TEST(ZeroOptionsTest, ZERO_17_RanksThatDifferGetAnErrorThatSaysSo) {
  const auto differ = [](const std::function<absl::Status(ReplicaWorld&, int)>& create) {
    ReplicaWorld world(2, Model(Shapes()));
    world.OnAll([&](int rank) {
      const absl::Status status = create(world, rank);
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(Text(status), HasSubstr("the ranks differ in call 0"));
    });
  };
  differ([](ReplicaWorld& world, int rank) {
    Adam adam;
    adam.lr = rank == 0 ? 0.1 : 0.2;
    return ZeroRedundancyOptimizer::Create(world.groups[rank], world.replicas[rank], adam).status();
  });
  differ([](ReplicaWorld& world, int rank) {
    ZeroOptions options;
    if (rank == 1) options.settings.schedule = Schedule::Exponential(0.9);
    return ZeroRedundancyOptimizer::Create(world.groups[rank], world.replicas[rank], Adam{},
                                           options)
        .status();
  });
  differ([](ReplicaWorld& world, int rank) {
    std::vector<ZeroGroup> groups = {{{0, 1}, {}}};
    if (rank == 1) groups[0].parameters = {1, 0};
    return ZeroRedundancyOptimizer::Create(world.groups[rank], world.replicas[rank], Adam{}, groups)
        .status();
  });
  ZeroWorld ranks(2, Model(Shapes()), Adam{}, {}, {{{0, 1}, {}}});
  ranks.OnAll([&](int rank) {
    const absl::Status status = ranks.zero[rank]->AddGroup({{rank == 0 ? size_t{2} : 3}, {}});
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("one more group"));
    EXPECT_EQ(ranks.zero[rank]->RankOf(2), -1) << "nothing has changed";
  });
}

TEST(ZeroOptionsTest, ZERO_17_ARankThatStepsWhileTheOthersAddAGroupIsAnErrorOnAll) {
  ZeroWorld ranks(3, Model(Shapes()), Adam{}, {}, {{{0, 1}, {}}});
  ranks.OnAll([&](int rank) {
    const Replica& replica = ranks.replicas[rank];
    const absl::Status status =
        rank == 1 ? ranks.zero[1]->Step(WithGradients(replica, Gradients(replica, 1)))
                  : ranks.zero[rank]->AddGroup({{2}, {}});
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Text(status), AllOf(HasSubstr("the ranks differ in call"), HasSubstr("rank 1 (t1)"),
                                    HasSubstr("one more group")));
    EXPECT_EQ(ranks.zero[rank]->RankOf(2), -1) << "nothing has been added";
  });
}

TEST(ZeroOptionsTest, ZERO_17_StepsThatDifferGetAnErrorThatSaysSo) {
  const auto differ = [](const std::function<void(ZeroWorld&, int, ZeroStepOptions&)>& prepare) {
    std::vector<ReplicaParameter> parameters = Model({{4}, {4}, {4}, {4}});
    ZeroWorld ranks(2, parameters, Adam{});
    ASSERT_EQ(ranks.zero[0]->RankOf(0), ranks.zero[0]->RankOf(2)) << "for the masks below";
    ranks.OnAll([&](int rank) {
      const Replica& replica = ranks.replicas[rank];
      ZeroStepOptions options;
      const Context context = WithGradients(replica, Gradients(replica, 1));
      prepare(ranks, rank, options);
      const absl::Status status = ranks.zero[rank]->Step(context, options);
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(Text(status), HasSubstr("the ranks differ in call"));
    });
  };
  differ([](ZeroWorld&, int rank, ZeroStepOptions& options) { options.clip_norm = 1.0 + rank; });
  differ([](ZeroWorld&, int rank, ZeroStepOptions& options) { options.clip_value = 1.0 + rank; });
  differ([](ZeroWorld&, int rank, ZeroStepOptions& options) { options.loss_scale = 2 << rank; });
  differ([](ZeroWorld& ranks, int rank, ZeroStepOptions&) {
    // Both have the same shape, and the same rank steps them.
    ASSERT_TRUE(ranks.replicas[rank].SetFrozen(rank == 0 ? 0 : 2, true).ok());
  });
  differ([](ZeroWorld& ranks, int rank, ZeroStepOptions&) {
    const double lr = rank == 0 ? 0.1 : std::nextafter(0.1, 1);
    ASSERT_TRUE(ranks.zero[rank]->SetOptions(0, {{"lr", lr}}).ok());
  });
}

TEST(ZeroOptionsTest, ZERO_12_AllRanksTakeOrRefuseOptions) {
  // Only one rank has a parameter that cannot be rounded stochastically.
  std::vector<ReplicaParameter> parameters = Model({{4}, {4}});
  parameters[0].elements = Must(ops::Cast(parameters[0].elements, DType::kBF16));
  ZeroWorld ranks(2, parameters, Sgd{});
  ASSERT_NE(ranks.zero[0]->RankOf(0), ranks.zero[0]->RankOf(1));
  for (const auto& zero : ranks.zero) {
    const absl::Status status = zero->SetOptions(0, {{"stochastic_rounding", 1}});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(Text(status), HasSubstr("p1"));
    EXPECT_EQ(Must(zero->Options()).options.at("stochastic_rounding"), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(zero->SetOptions(0, {{"momentum", 0.9}})));
  }
}

TEST(ZeroOptionsTest, ZERO_07_ClippingByNormHasTheBitsOfAPlainOptimizer) {
  // Sums of squares of very different sizes, which add up to other bits in another order.
  std::vector<ReplicaParameter> parameters;
  const std::vector<Shape> shapes = Shapes();
  for (size_t i = 0; i < shapes.size(); ++i) {
    ReplicaParameter& parameter = parameters.emplace_back();
    parameter.name = absl::StrCat("p", i);
    parameter.elements = Wavy(shapes[i], static_cast<double>(i), DType::kF64);
  }
  const auto gradients = [](const Replica& replica, int seed) {
    std::vector<Tensor> scaled = Gradients(replica, seed);
    for (size_t i = 0; i < scaled.size(); ++i)
      scaled[i] = Must(ops::Mul(scaled[i], std::pow(3.7, static_cast<double>(i % 4) * 2 - 3)));
    return scaled;
  };
  ZeroWorld ranks(3, parameters, Sgd{});
  PlainTrainer plain(parameters, Sgd{});
  ZeroStepOptions clipped;
  clipped.clip_norm = 0.5;
  clipped.clip_value = 0.05;
  StepOptions the_same;
  the_same.clip_norm = 0.5;
  the_same.clip_value = 0.05;
  for (int step = 0; step < 10; ++step) {
    ranks.Step([&](int rank) { return gradients(ranks.replicas[rank], step); }, clipped);
    plain.Step(gradients(*plain.replica, step), the_same);
    for (const Replica& replica : ranks.replicas) ExpectSameElements(replica, *plain.replica);
  }
}

TEST(ZeroOptionsTest, AGradientOfOneShardWithoutANormStopsTheStepOfAll) {
  ZeroWorld ranks(2, Model(Shapes()), Sgd{});
  ZeroStepOptions clipped;
  clipped.clip_norm = 0.5;
  const std::vector<Tensor> before = Must(ranks.replicas[0].Elements());
  // A NaN on the rank that has the parameter: no rank steps, and the group goes on.
  ranks.OnAll([&](int rank) {
    std::vector<Tensor> gradients = Gradients(ranks.replicas[rank], 2);
    if (rank == ranks.zero[rank]->RankOf(3))
      gradients[3] = Must(Tensor::Full({64, 3}, DType::kF32, NAN));
    const Context context = WithGradients(ranks.replicas[rank], gradients);
    const absl::Status status = ranks.zero[rank]->Step(context, clipped);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  });
  for (const Replica& replica : ranks.replicas) {
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(SameBits(Must(replica.Elements())[i], before[i]));
  }
  ranks.Step(3, clipped);
}

TEST(ZeroOptionsTest, AnOverflowOnOneRankSkipsTheStepOnAll) {
  ZeroOptions options;
  options.settings.loss_scaling = LossScaling::Dynamic(8);
  ZeroWorld ranks(2, Model(Shapes()), Adam{}, options);
  const std::vector<Tensor> before = Must(ranks.replicas[0].Elements());
  ZeroStepOptions scaled;
  scaled.loss_scale = 8;
  ranks.Step(
      [&](int rank) {
        std::vector<Tensor> gradients = Gradients(ranks.replicas[rank], 2);
        if (rank == ranks.zero[rank]->RankOf(0))
          gradients[0] = Must(Tensor::Full({7}, DType::kF32, INFINITY));
        return gradients;
      },
      scaled);
  for (const auto& zero : ranks.zero) {
    EXPECT_EQ(zero->LossScale(), 4);
    EXPECT_EQ(zero->steps(), 0u);
  }
  for (const Replica& replica : ranks.replicas) {
    for (size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(SameBits(Must(replica.Elements())[i], before[i]));
  }
  scaled.loss_scale = 4;
  ranks.Step(3, scaled);
  EXPECT_EQ(ranks.zero[1]->steps(), 1u);
  ExpectSameElements(ranks.replicas[0], ranks.replicas[1]);
  const Context context = WithGradients(ranks.replicas[0], Gradients(ranks.replicas[0], 1));
  EXPECT_TRUE(absl::IsInvalidArgument(ranks.zero[0]->Step(context))) << "without the scale";
}

}  // namespace
}  // namespace psd
