// Steps of sharded optimizers: equal to those of a plain one, bit for bit.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/psd.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/tensor/ops/cast.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/zero/zero_world.h"

namespace psd {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;

// Small ones that travel together, one that travels alone, one without elements, a scalar.
std::vector<Shape> Shapes() {
  return {{7}, {300, 300}, {}, {0}, {64, 3}, {5, 5}, {13}};
}

std::vector<OptimizerSpec> AllTypes() {
  Sgd momentum;
  momentum.momentum = 0.9;
  momentum.weight_decay = 0.01;
  Adam amsgrad;
  amsgrad.amsgrad = true;
  Adam maximize;
  maximize.maximize = true;
  RmsProp centered;
  centered.centered = true;
  centered.momentum = 0.5;
  return {Sgd{},   momentum, Adagrad{},  Adam{},    amsgrad,  maximize,
          AdamW{}, Adamax{}, Adadelta{}, RmsProp{}, centered, Rprop{}};
}

TEST(ZeroStepTest, ZERO_06_ZERO_07_ZERO_09_ZERO_18_StepsHaveTheBitsOfAPlainOptimizer) {
  for (const OptimizerSpec& spec : AllTypes()) {
    SCOPED_TRACE(spec.ToString());
    ZeroWorld ranks(kRanks, Model(Shapes()), spec);
    PlainTrainer plain(Model(Shapes()), spec);
    const OptimizerSnapshot unsharded = Must(TakeSnapshot(*plain.optimizer, *plain.replica));
    for (int step = 0; step < 3; ++step) {
      ranks.Step(step);
      plain.Step(Gradients(*plain.replica, step));
      for (const Replica& replica : ranks.replicas)
        ExpectSameElements(replica, *plain.replica, absl::StrCat("after step ", step));
    }
    size_t all = 0, whole = 0;
    for (const auto& zero : ranks.zero) all += zero->StateBytes();
    for (const ParameterSnapshot& parameter : unsharded.groups[0].parameters)
      for (const auto& [name, array] : parameter.state) whole += array.NumBytes();
    EXPECT_GE(all, whole);
    EXPECT_LT(all, whole + 4096) << "each array has one rank; blocks are rounded up";
    EXPECT_EQ(ranks.zero[1]->steps(), 3u);
  }
}

TEST(ZeroStepTest, ZERO_06_ARankHasStateForItsShardOnly) {
  const std::vector<Shape> equal(9, Shape{1000});
  ZeroWorld ranks(kRanks, Model(equal), Adam{});
  for (const auto& zero : ranks.zero) {
    EXPECT_GE(zero->StateBytes(), 3u * 1000 * 8);
    EXPECT_LT(zero->StateBytes(), 3u * 1000 * 8 * 1.05);
  }
  for (size_t i = 0; i < 9; ++i)
    for (const auto& zero : ranks.zero) EXPECT_EQ(zero->RankOf(i), ranks.zero[0]->RankOf(i));
  EXPECT_EQ(ranks.zero[0]->RankOf(9), -1);
}

// No parameter takes more than a rank's share.
TEST(ZeroStepTest, ZERO_06_UnevenParametersLeaveNoRankMuchMoreThanItsShare) {
  std::vector<Shape> uneven;
  for (int64_t i = 0; i < 40; ++i) uneven.push_back({i * 37 % 101 + 1, 50 + i % 7});
  PlainTrainer plain(Model(uneven), Adam{});
  const OptimizerSnapshot unsharded = Must(TakeSnapshot(*plain.optimizer, *plain.replica));
  size_t whole = 0;
  for (const ParameterSnapshot& parameter : unsharded.groups[0].parameters)
    for (const auto& [name, array] : parameter.state) whole += array.NumBytes();
  for (const int count : {2, 4}) {
    ZeroWorld ranks(count, Model(uneven), Adam{});
    size_t sum = 0;
    for (const auto& zero : ranks.zero) {
      sum += zero->StateBytes();
      EXPECT_LE(static_cast<double>(zero->StateBytes()), 1.05 * static_cast<double>(whole) / count)
          << "on rank " << zero->group().rank() << " of " << count;
    }
    EXPECT_EQ(sum, whole);
  }
}

TEST(ZeroStepTest, ZERO_18_SmallParametersOfARankTravelInOneBuffer) {
  ZeroWorld ranks(kRanks, Model(std::vector<Shape>(12, Shape{50})), Adam{});
  ranks.Step(1);
  // The ranks agree on the groups; each of them sends one buffer; a barrier ends the step.
  EXPECT_EQ(CountCalls(ranks), 1 + kRanks + 1);
}

TEST(ZeroStepTest, ZERO_08_OnlyTheGradientOfTheRankThatHasTheParameterCounts) {
  ZeroWorld ranks(kRanks, Model(Shapes()), Sgd{});
  PlainTrainer plain(Model(Shapes()), Sgd{});
  ranks.Step([&](int rank) { return Gradients(ranks.replicas[rank], 100 + rank); });
  std::vector<Tensor> counted;
  for (size_t i = 0; i < plain.replica->size(); ++i)
    counted.push_back(Gradients(*plain.replica, 100 + ranks.zero[0]->RankOf(i))[i]);
  plain.Step(counted);
  for (const Replica& replica : ranks.replicas) ExpectSameElements(replica, *plain.replica);
}

TEST(ZeroStepTest, ZERO_13_AParameterWithoutAGradientStaysAndANewContextHasNone) {
  ZeroWorld ranks(kRanks, Model({{4}, {4}, {4}, {4}}), Adam{});
  PlainTrainer plain(Model({{4}, {4}, {4}, {4}}), Adam{});
  ranks.Step(1);
  plain.Step(Gradients(*plain.replica, 1));
  const auto some = [](const Replica& replica) {
    std::vector<Tensor> gradients = Gradients(replica, 2);
    gradients[1] = gradients[2] = Tensor();
    return gradients;
  };
  ranks.Step([&](int rank) { return some(ranks.replicas[rank]); });
  plain.Step(some(*plain.replica));
  ranks.Step([&](int rank) { return std::vector<Tensor>(ranks.replicas[rank].size()); });
  for (const Replica& replica : ranks.replicas) {
    ExpectSameElements(replica, *plain.replica);
    const Context context = Must(replica.worker().NewContext());
    for (const Tensor& gradient : Must(replica.Gradients(context)))
      EXPECT_FALSE(gradient.defined());
  }
}

TEST(ZeroStepTest, ZERO_10_AStepWithALossReturnsItAndUpdates) {
  ZeroWorld ranks(2, Model({{3}, {2}}), Sgd{});
  PlainTrainer plain(Model({{3}, {2}}), Sgd{});
  const auto loss = [](const Replica& replica) {
    return [&replica](const Context& context) -> absl::StatusOr<Variable> {
      PSD_ASSIGN_OR_RETURN(const std::vector<Variable> p, replica.Variables(context));
      return Sum(Mul(p[0], p[0])) + Sum(p[1]);
    };
  };
  Context context = Must(plain.worker->NewContext());
  const Variable expected = Must(loss(*plain.replica)(context));
  ASSERT_TRUE(context.Backward({expected}).ok());
  ASSERT_TRUE(plain.optimizer->Step(context).ok());
  ranks.OnAll([&](int rank) {
    const Tensor got = Must(ranks.zero[rank]->Step(loss(ranks.replicas[rank])));
    EXPECT_TRUE(SameBits(got, expected.tensor()));
    ExpectSameElements(ranks.replicas[rank], *plain.replica);
    EXPECT_FALSE(ranks.zero[rank]
                     ->Step([](const Context&) -> absl::StatusOr<Variable> {
                       return absl::InternalError("no loss");
                     })
                     .ok())
        << "which counts on no rank";
    ASSERT_TRUE(ranks.zero[rank]->Step(loss(ranks.replicas[rank])).ok());
  });
}

TEST(ZeroStepTest, ZERO_15_ParametersOfSeveralDTypesAreSteppedTogether) {
  std::vector<ReplicaParameter> parameters = Model({{9}, {8}, {7}});
  parameters[1].elements = Wavy({8}, 5, DType::kF64);
  ZeroWorld ranks(2, parameters, Adam{});
  PlainTrainer plain(parameters, Adam{});
  for (int step = 0; step < 3; ++step) {
    ranks.Step(step);
    plain.Step(Gradients(*plain.replica, step));
  }
  for (const Replica& replica : ranks.replicas) ExpectSameElements(replica, *plain.replica);
}

TEST(ZeroStepTest, ZERO_15_HalfParametersAreSteppedBesideOthers) {
  std::vector<ReplicaParameter> parameters = Model({{9}, {8}, {7}, {6}});
  for (const size_t half : {1, 3}) {
    ReplicaParameter& parameter = parameters[half];
    parameter.elements = Must(ops::Cast(parameter.elements, DType::kBF16));
  }
  const auto gradients = [](const Replica& replica, int seed) {
    std::vector<Tensor> all;
    for (const ReplicatedParameter& parameter : replica.parameters())
      all.push_back(Must(ops::Cast(Wavy(parameter.shape, seed), parameter.dtype)));
    return all;
  };
  ZeroWorld ranks(2, parameters, Adam{});
  PlainTrainer plain(parameters, Adam{});
  for (int step = 0; step < 3; ++step) {
    ranks.Step([&](int rank) { return gradients(ranks.replicas[rank], step); });
    plain.Step(gradients(*plain.replica, step));
    for (const Replica& replica : ranks.replicas)
      ExpectSameElements(replica, *plain.replica, absl::StrCat("after step ", step));
  }
}

TEST(ZeroStepTest, ZERO_19_ARankWithoutParametersTakesPartAndSendsNothing) {
  ZeroWorld ranks(kRanks, Model({{4}}), Adam{});
  PlainTrainer plain(Model({{4}}), Adam{});
  for (int step = 0; step < 2; ++step) {
    ranks.Step(step);
    plain.Step(Gradients(*plain.replica, step));
  }
  for (const Replica& replica : ranks.replicas) ExpectSameElements(replica, *plain.replica);
  EXPECT_EQ(ranks.zero[2]->StateBytes(), 0u);
  // The ranks agree on the groups. In each step one of them sends a buffer, and a barrier follows.
  EXPECT_EQ(CountCalls(ranks), 1 + 2 * (1 + 1));
}

TEST(ZeroStepTest, ZERO_04_FrozenParametersCountOrDoNot) {
  std::vector<ReplicaParameter> parameters = Model({{100}, {10}, {10}});
  parameters[0].requires_grad = false;
  ZeroWorld by_elements(2, parameters, Adam{});
  EXPECT_EQ(by_elements.zero[0]->RankOf(1), 1);
  EXPECT_EQ(by_elements.zero[0]->RankOf(2), 1);
  ZeroOptions by_state;
  by_state.balance = ZeroOptions::Balance::kState;
  ZeroWorld balanced(2, parameters, Adam{}, by_state);
  EXPECT_NE(balanced.zero[0]->RankOf(1), balanced.zero[0]->RankOf(2));
  const Tensor before = Must(balanced.replicas[0].Elements())[0];
  balanced.Step([&](int rank) {
    std::vector<Tensor> gradients = Gradients(balanced.replicas[rank], 1);
    gradients[0] = Tensor();
    return gradients;
  });
  EXPECT_TRUE(SameBits(Must(balanced.replicas[1].Elements())[0], before));
}

TEST(ZeroStepTest, ZERO_21_ParametersAreFrozenAndThawedAtRunTime) {
  ZeroWorld ranks(2, Model({{6}, {5}, {4}}), Adam{});
  PlainTrainer plain(Model({{6}, {5}, {4}}), Adam{});
  const auto step = [&](const std::vector<size_t>& frozen, int seed) {
    const auto some = [&](const Replica& replica) {
      std::vector<Tensor> gradients = Gradients(replica, seed);
      for (const size_t index : frozen) gradients[index] = Tensor();
      return gradients;
    };
    ranks.OnAll([&](int rank) {
      for (size_t i = 0; i < 3; ++i) {
        const bool freeze = std::find(frozen.begin(), frozen.end(), i) != frozen.end();
        ASSERT_TRUE(ranks.replicas[rank].SetFrozen(i, freeze).ok());
      }
    });
    ranks.Step([&](int rank) { return some(ranks.replicas[rank]); });
    plain.Step(some(*plain.replica));
    for (const Replica& replica : ranks.replicas) ExpectSameElements(replica, *plain.replica);
  };
  step({}, 1);
  step({0, 2}, 2);
  step({1}, 3);
  step({}, 4);
}

TEST(ZeroStepTest, ZERO_21_AParameterThatIsFrozenAfterBackwardStaysOnAllRanks) {
  ZeroWorld ranks(2, Model({{6}, {5}, {4}}), Adam{});
  PlainTrainer plain(Model({{6}, {5}, {4}}), Adam{});
  ranks.Step(1);
  plain.Step(Gradients(*plain.replica, 1));
  const std::vector<Tensor> before = Must(ranks.replicas[0].Elements());
  std::vector<std::unique_ptr<BufferedDataParallel>> ddp(2);
  for (int rank = 0; rank < 2; ++rank)
    ddp[rank] = Must(BufferedDataParallel::Create(ranks.groups[rank], ranks.replicas[rank]));
  ranks.OnAll([&](int rank) {
    Replica& replica = ranks.replicas[rank];
    const Context context = WithGradients(replica, Gradients(replica, 2 + rank));
    for (size_t i : {0, 1}) ASSERT_TRUE(replica.SetFrozen(i, true).ok());
    ASSERT_TRUE(ddp[rank]->AllReduceGradients(context).ok());
    ASSERT_TRUE(ranks.zero[rank]->Step(context).ok());
    const std::vector<Tensor> after = Must(replica.Elements());
    for (size_t i : {0, 1}) EXPECT_TRUE(SameBits(after[i], before[i]));
    EXPECT_FALSE(SameBits(after[2], before[2]));
    for (size_t i : {0, 1}) ASSERT_TRUE(replica.SetFrozen(i, false).ok());
  });
  ExpectSameElements(ranks.replicas[0], ranks.replicas[1]);
  const OptimizerSnapshot state = ranks.Gathered(0);
  for (size_t i : {0, 1}) EXPECT_EQ(state.groups[0].parameters[i].steps, 1u);
  EXPECT_EQ(state.groups[0].parameters[2].steps, 2u);
  for (size_t i : {0, 1}) {
    for (const auto& [name, array] : state.groups[0].parameters[i].state) {
      const OptimizerSnapshot once = Must(TakeSnapshot(*plain.optimizer, *plain.replica));
      EXPECT_TRUE(SameBits(array, once.groups[0].parameters[i].state.at(name))) << name;
    }
  }
}

TEST(ZeroStepTest, ZERO_22_ZERO_23_RanksOfAGroupAreItsOwn) {
  // Ranks 0 and 1 of the group are t2 and t0, and t1 takes no part.
  ReplicaWorld world(3, Model({{9}, {7}, {5}}));
  GroupOptions options;
  options.members = {"t2", "t0"};
  PlainTrainer plain(Model({{9}, {7}, {5}}), Adam{});
  plain.Step(Gradients(*plain.replica, 1));
  world.OnAll([&](int worker) {
    if (worker == 1) return;
    const auto group = Must(Group::Join(*world.world.workers[worker], "some", options));
    EXPECT_EQ(group->rank(), worker == 2 ? 0 : 1);
    const auto zero = Must(ZeroRedundancyOptimizer::Create(group, world.replicas[worker], Adam{}));
    EXPECT_EQ(zero->RankOf(0), 0) << "the largest parameter is t2's";
    EXPECT_EQ(zero->StateBytes() >= 9 * 8 && zero->StateBytes() < 12 * 8 + 256, true)
        << zero->StateBytes();
    const Replica& replica = world.replicas[worker];
    ASSERT_TRUE(zero->Step(WithGradients(replica, Gradients(replica, 1))).ok());
    ExpectSameElements(replica, *plain.replica);
  });
}

TEST(ZeroStepTest, ZERO_32_WithDataParallelismItEqualsAPlainOptimizerOnTheMeans) {
  for (const bool maximize : {false, true}) {
    Adam adam;
    adam.maximize = maximize;
    AdamW adamw;
    adamw.maximize = maximize;
    Sgd sgd;
    sgd.maximize = maximize;
    sgd.momentum = 0.9;
    for (const OptimizerSpec& spec : std::vector<OptimizerSpec>{adam, adamw, sgd}) {
      SCOPED_TRACE(spec.ToString());
      ZeroWorld ranks(4, Model(Shapes()), spec);
      PlainTrainer plain(Model(Shapes()), spec);
      std::vector<std::unique_ptr<BufferedDataParallel>> ddp(4);
      for (int rank = 0; rank < 4; ++rank)
        ddp[rank] = Must(BufferedDataParallel::Create(ranks.groups[rank], ranks.replicas[rank]));
      for (int batch = 0; batch < 20; ++batch) {
        std::vector<Tensor> means;
        ranks.OnAll([&](int rank) {
          const Replica& replica = ranks.replicas[rank];
          const Context context = WithGradients(replica, Gradients(replica, 4 * batch + rank));
          ASSERT_TRUE(ddp[rank]->AllReduceGradients(context).ok());
          if (rank == 0) means = Must(replica.Gradients(context));
          ASSERT_TRUE(ranks.zero[rank]->Step(context).ok());
        });
        plain.Step(means);
      }
      for (const Replica& replica : ranks.replicas) ExpectSameElements(replica, *plain.replica);
    }
  }
}

TEST(ZeroStepTest, AGroupOfOneIsAPlainOptimizer) {
  PlainTrainer alone(Model(Shapes())), plain(Model(Shapes()), Adam{});
  GroupOptions one;
  one.members = {"plain"};
  const auto zero = Must(ZeroRedundancyOptimizer::Create(
      Must(Group::Join(*alone.worker, "solo", one)), *alone.replica, Adam{}));
  for (int step = 0; step < 2; ++step) {
    const Context context = WithGradients(*alone.replica, Gradients(*alone.replica, step));
    ASSERT_TRUE(zero->Step(context).ok());
    plain.Step(Gradients(*plain.replica, step));
  }
  ExpectSameElements(*alone.replica, *plain.replica);
  ASSERT_TRUE(zero->Consolidate(0).ok());
  ExpectSameState(Must(zero->State()), Must(TakeSnapshot(*plain.optimizer, *plain.replica)));
}

}  // namespace
}  // namespace psd
