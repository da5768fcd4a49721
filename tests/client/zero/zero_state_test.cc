// The state of sharded optimizers: gathered on a rank, loaded, and what is refused.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "client/zero/optimizer_snapshot.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/status.h"
#include "core/carrier/carrier.h"
#include "core/runtime/runtime.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/zero/zero_world.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 3;

std::vector<Shape> Shapes() {
  return {{7}, {300, 300}, {3}, {}, {64, 3}, {5, 5}};
}

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

TEST(ZeroStateTest, ZERO_25_ZERO_30_AnyRankGetsThePlainOptimizersState) {
  Sgd momentum;
  momentum.momentum = 0.9;
  for (const OptimizerSpec& spec : std::vector<OptimizerSpec>{Adam{}, momentum, Sgd{}, Rprop{}}) {
    SCOPED_TRACE(spec.ToString());
    ZeroWorld ranks(kRanks, Model(Shapes()), spec);
    PlainTrainer plain(Model(Shapes()), spec);
    for (int step = 0; step < 2; ++step) {
      ranks.Step(step);
      plain.Step(Gradients(*plain.replica, step));
    }
    const OptimizerSnapshot expected = Must(TakeSnapshot(*plain.optimizer, *plain.replica));
    for (int to = 0; to < kRanks; ++to) ExpectSameState(ranks.Gathered(to), expected);
  }
}

// The bytes that a worker has exchanged with others through shared memory.
uint64_t TrafficOf(Worker& worker) {
  const carrier::SharedTraffic traffic = RuntimeOf(worker).options().carrier->shared_traffic();
  return traffic.copied_out + traffic.copied_in + traffic.lent + traffic.borrowed;
}

TEST(ZeroStateTest, ZERO_25_ZERO_30_TheStateIsGatheredAndNotBroadcast) {
  constexpr uint64_t kState = 300 * 300 * 2 * sizeof(float);  // of the one large parameter
  ZeroWorld ranks(kRanks, Model(Shapes()), Adam{});
  ranks.Step(1);
  const int from = ranks.zero[0]->RankOf(1);
  for (const int distance : {1, 2}) {
    const int to = (from + distance) % kRanks, other = kRanks - from - to;
    SCOPED_TRACE(absl::StrCat("from ", from, " to ", to));
    std::vector<uint64_t> moved;
    for (const auto& worker : ranks.world.workers) moved.push_back(TrafficOf(*worker));
    ranks.Gathered(to);
    for (int rank = 0; rank < kRanks; ++rank)
      moved[rank] = TrafficOf(*ranks.world.workers[rank]) - moved[rank];
    EXPECT_GE(moved[from], kState);
    EXPECT_GE(moved[to], kState);
    EXPECT_LT(moved[other], 8192u) << "its own state of a few elements, and barriers";
  }
}

TEST(ZeroStateTest, ZERO_24_ZERO_31_StateThatIsNotHereOrStaleNamesTheCallToMake) {
  ZeroWorld ranks(2, Model({{3}, {4}}), Adam{});
  EXPECT_THAT(Text(ranks.zero[0]->State().status()),
              AllOf(HasSubstr("was not consolidated"), HasSubstr("call Consolidate(0)")));
  ranks.Gathered(1);
  EXPECT_THAT(Text(ranks.zero[0]->State().status()),
              AllOf(HasSubstr("to rank 1, not 0"), HasSubstr("call Consolidate(0)")));
  ranks.Step(1);
  const absl::Status stale = ranks.zero[1]->State().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(stale));
  EXPECT_THAT(Text(stale), AllOf(HasSubstr("has changed since"), HasSubstr("call Consolidate(1)")));
  EXPECT_TRUE(absl::IsInvalidArgument(ranks.zero[0]->Consolidate(2)));
  EXPECT_TRUE(absl::IsInvalidArgument(ranks.zero[0]->Consolidate(-1)));
}

TEST(ZeroStateTest, ZERO_26_ZERO_27_StateMovesToAPlainOptimizerAndBack) {
  Adam other;
  other.lr = 0.5;
  ZeroWorld ranks(kRanks, Model(Shapes()), Adam{});
  ranks.Step(1);
  const OptimizerSnapshot saved = ranks.Gathered(2);

  PlainTrainer plain(Model(Shapes()), other);
  plain.Step(Gradients(*plain.replica, 7));  // whose state is replaced
  std::vector<std::pair<size_t, Tensor>> elements;
  for (Tensor& each : Must(ranks.replicas[0].Elements()))
    elements.emplace_back(elements.size(), each);
  ASSERT_TRUE(plain.replica->Assign(elements).ok());
  const absl::Status loaded = LoadSnapshot(*plain.optimizer, *plain.replica, saved);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(Must(plain.optimizer->Options()).options.at("lr"), 1e-3) << "the saved one";
  ranks.Step(2);
  plain.Step(Gradients(*plain.replica, 2));
  for (const Replica& replica : ranks.replicas) ExpectSameElements(replica, *plain.replica);

  // Back, into another number of ranks.
  const OptimizerSnapshot back = Must(TakeSnapshot(*plain.optimizer, *plain.replica));
  ZeroWorld two(2, Model(Shapes()), other);
  elements.clear();
  for (Tensor& each : Must(plain.replica->Elements())) elements.emplace_back(elements.size(), each);
  two.OnAll([&](int rank) {
    ASSERT_TRUE(two.replicas[rank].Assign(elements).ok());
    const absl::Status status = two.zero[rank]->Load(back);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(two.zero[rank]->steps(), 2u);
    EXPECT_EQ(Must(two.zero[rank]->Options()).options.at("lr"), 1e-3);
  });
  const size_t all = two.zero[0]->StateBytes() + two.zero[1]->StateBytes();
  two.Step(3);
  plain.Step(Gradients(*plain.replica, 3));
  for (const Replica& replica : two.replicas) ExpectSameElements(replica, *plain.replica);
  EXPECT_EQ(two.zero[0]->StateBytes() + two.zero[1]->StateBytes(), all)
      << "each rank has kept the state of its shard only";
}

TEST(ZeroStateTest, ZERO_28_ZERO_29_ASnapshotAndAnOptimizerShareNothing) {
  ZeroWorld ranks(2, Model({{5}, {4}}), Adam{});
  ranks.Step(1);
  const OptimizerSnapshot saved = ranks.Gathered(0);
  const auto copy_of = [](const OptimizerSnapshot& snapshot) {
    std::vector<std::vector<float>> numbers;
    for (const ParameterSnapshot& parameter : snapshot.groups[0].parameters)
      for (const auto& [name, array] : parameter.state) numbers.push_back(Elements(array));
    return numbers;
  };
  const auto before = copy_of(saved);
  ranks.Step(2);
  EXPECT_EQ(copy_of(saved), before) << "steps change no snapshot";
  ranks.OnAll([&](int rank) { ASSERT_TRUE(ranks.zero[rank]->Load(saved).ok()); });
  EXPECT_EQ(copy_of(saved), before) << "nor does a load";
  EXPECT_EQ(saved.groups[0].parameters.size(), 2u);
  ranks.Step(3);
  EXPECT_EQ(copy_of(saved), before) << "nor do steps after it";
  const OptimizerSnapshot now = ranks.Gathered(1);
  const auto numbers = copy_of(now);
  OptimizerSnapshot scribbled = Must(ranks.zero[1]->State());
  for (ParameterSnapshot& parameter : scribbled.groups[0].parameters)
    for (auto& [name, array] : parameter.state)
      std::memset(array.mutable_raw_data(), 0x55, array.NumBytes());
  EXPECT_EQ(copy_of(now), numbers);
  EXPECT_EQ(copy_of(Must(ranks.zero[1]->State())), numbers) << "each call gets a copy of its own";
}

TEST(ZeroStateTest, ZERO_26_ANamedOptimizerGoesOnAfterALoad) {
  ZeroOptions scaling;
  scaling.settings.loss_scaling = LossScaling::Dynamic(8);
  ZeroWorld ranks(2, Model({{5}, {4}}), Adam{}, scaling);
  ZeroStepOptions scaled;
  scaled.loss_scale = 8;
  ranks.Step(1, scaled);
  // An overflow makes the scale 4.
  ranks.Step(
      [](int) {
        return std::vector<Tensor>{Must(Tensor::Full({5}, DType::kF32, INFINITY)), Tensor()};
      },
      scaled);
  const OptimizerSnapshot saved = ranks.Gathered(0);
  EXPECT_EQ(saved.loss_scale, 4);

  PlainTrainer plain(Model({{5}, {4}}));
  plain.optimizer = Must(DistributedOptimizer::Create(*plain.worker, "main", Adam{},
                                                      plain.replica->values(), scaling.settings));
  ASSERT_TRUE(plain.optimizer->SetOptions(0, {{"lr", 0.5}}).ok());
  std::vector<std::pair<size_t, Tensor>> elements;
  for (Tensor& each : Must(ranks.replicas[0].Elements()))
    elements.emplace_back(elements.size(), each);
  ASSERT_TRUE(plain.replica->Assign(elements).ok());
  const absl::Status loaded = LoadSnapshot(*plain.optimizer, *plain.replica, saved);
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(plain.optimizer->LossScale(), 4);
  StepOptions the_same;
  the_same.loss_scale = scaled.loss_scale = 4;
  ranks.Step(2, scaled);
  plain.Step(Gradients(*plain.replica, 2), the_same);
  ExpectSameElements(ranks.replicas[0], *plain.replica);
  EXPECT_TRUE(plain.optimizer->SetOptions(0, {{"lr", 0.25}}).ok());
  EXPECT_EQ(Must(plain.optimizer->Options()).options.at("lr"), 0.25);
}

TEST(ZeroStateTest, ZERO_26_ParametersThatRequireNoGradAreNotMissedInAPlainOptimizer) {
  std::vector<ReplicaParameter> model = Model({{5}, {3}, {4}});
  model[1].requires_grad = false;
  ZeroWorld ranks(2, model, Adam{});
  const auto gradients = [&](const Replica& replica, double seed) {
    std::vector<Tensor> all = Gradients(replica, seed);
    all[1] = Tensor();
    return all;
  };
  const auto step_all = [&](double seed) {
    ranks.Step([&](int rank) { return gradients(ranks.replicas[rank], seed); });
  };
  step_all(1);
  PlainTrainer plain(model);
  plain.optimizer = Must(DistributedOptimizer::Create(
      *plain.worker, Adam{}, {plain.replica->values()[0], plain.replica->values()[2]}));
  const absl::Status there = LoadSnapshot(*plain.optimizer, *plain.replica, ranks.Gathered(0));
  ASSERT_TRUE(there.ok()) << there;
  std::vector<std::pair<size_t, Tensor>> elements;
  for (Tensor& each : Must(ranks.replicas[0].Elements()))
    elements.emplace_back(elements.size(), each);
  ASSERT_TRUE(plain.replica->Assign(elements).ok());
  step_all(2);
  plain.Step(gradients(*plain.replica, 2));
  ExpectSameElements(ranks.replicas[0], *plain.replica);

  const OptimizerSnapshot back = Must(TakeSnapshot(*plain.optimizer, *plain.replica));
  ASSERT_EQ(back.groups[0].parameters.size(), 2u);
  ranks.OnAll([&](int rank) {
    const absl::Status loaded = ranks.zero[rank]->Load(back);
    EXPECT_TRUE(loaded.ok()) << loaded;
  });
  step_all(3);
  plain.Step(gradients(*plain.replica, 3));
  ExpectSameElements(ranks.replicas[1], *plain.replica);
}

TEST(ZeroStateTest, ASnapshotOfAnOptimizerThatDidNotScaleLeavesTheLossScale) {
  ZeroWorld unscaled(1, Model({{5}}), Adam{});
  unscaled.Step(1);
  const OptimizerSnapshot saved = unscaled.Gathered(0);
  ZeroOptions scaling;
  scaling.settings.loss_scaling = LossScaling::Dynamic(8);
  ZeroWorld ranks(1, Model({{5}}), Adam{}, scaling);
  ASSERT_TRUE(ranks.zero[0]->Load(saved).ok());
  EXPECT_EQ(ranks.zero[0]->LossScale(), 8);
  EXPECT_EQ(ranks.zero[0]->steps(), 1u);
}

TEST(ZeroStateTest, ZERO_29_LoadsAndAddedGroupsLeaveTheParametersVersions) {
  ZeroWorld ranks(2, Model({{5}, {3, 4}, {2}}), Adam{}, {}, {{{0, 1}, {}}});
  ranks.Step([&](int rank) {
    std::vector<Tensor> gradients = Gradients(ranks.replicas[rank], 1);
    gradients[2] = Tensor();
    return gradients;
  });
  OptimizerSnapshot saved = ranks.Gathered(0);
  // An array that is not contiguous.
  Tensor& strided = saved.groups[0].parameters[1].state["exp_avg"];
  strided = Must(Tensor::Full({}, DType::kF32, 0.5)).Repeated({3, 4});
  const auto versions = [&](int rank) {
    std::vector<uint64_t> all;
    for (const RRef& value : ranks.replicas[rank].values())
      all.push_back(Must(value.local_entry())->parameter->version());
    return all;
  };
  ranks.OnAll([&](int rank) {
    const std::vector<uint64_t> before = versions(rank);
    const absl::Status loaded = ranks.zero[rank]->Load(saved);
    EXPECT_TRUE(loaded.ok()) << loaded;
    ASSERT_TRUE(ranks.zero[rank]->AddGroup({{2}, {}}).ok());
    EXPECT_EQ(versions(rank), before);
  });
  const OptimizerSnapshot now = ranks.Gathered(1);
  EXPECT_EQ(Elements(now.groups[0].parameters[1].state.at("exp_avg")),
            std::vector<float>(12, 0.5f));
  EXPECT_EQ(now.groups[0].parameters[0].steps, 1u);
}

TEST(ZeroStateTest, AForeignSnapshotIsRefusedAndChangesNothing) {
  ZeroWorld ranks(2, Model({{5}, {4}}), Adam{});
  ranks.Step(1);
  const OptimizerSnapshot now = ranks.Gathered(0);
  const auto refused = [&](const OptimizerSnapshot& foreign) {
    std::string text;
    for (const auto& zero : ranks.zero) {
      const absl::Status status = zero->Load(foreign);
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      text = Text(status);
    }
    return text;
  };
  OptimizerSnapshot foreign = now;
  foreign.type = "sgd";
  EXPECT_THAT(refused(foreign), HasSubstr("'sgd', not 'adam'"));
  foreign = now;
  foreign.groups.push_back(now.groups[0]);
  EXPECT_THAT(refused(foreign), HasSubstr("2 groups, not 1"));
  foreign = now;
  foreign.groups[0].parameters.pop_back();
  EXPECT_THAT(refused(foreign), HasSubstr("1 parameters that require grad, not 2"));
  foreign = now;
  std::swap(foreign.groups[0].parameters[0], foreign.groups[0].parameters[1]);
  EXPECT_THAT(refused(foreign), HasSubstr("in the place of 'p0'"));
  foreign = now;
  foreign.groups[0].parameters[0].shape = {6};
  EXPECT_THAT(refused(foreign), HasSubstr("f32[6]"));
  foreign = now;
  foreign.groups[0].options["beta1"] = 7;
  for (const auto& zero : ranks.zero) EXPECT_FALSE(zero->Load(foreign).ok());
  // All ranks refuse what one of them cannot use.
  for (size_t i : {0, 1}) {
    foreign = now;
    foreign.groups[0].parameters[i].state.erase("exp_avg");
    EXPECT_THAT(refused(foreign), HasSubstr("1 arrays, expected 2"));
    foreign.groups[0].parameters[i].state.clear();
    EXPECT_THAT(refused(foreign), HasSubstr("0 arrays, expected 2"));
    foreign = now;
    foreign.groups[0].parameters[i].state["exp_avg"] = Wavy(i == 0 ? Shape{9} : Shape{8}, 1);
    EXPECT_THAT(refused(foreign), HasSubstr("'exp_avg' is f32["));
    foreign.groups[0].parameters[i].state["exp_avg"] = Tensor();
    EXPECT_THAT(refused(foreign), HasSubstr("'exp_avg' is"));
    foreign = now;
    foreign.groups[0].parameters[i].steps = ~uint64_t{0};
    EXPECT_THAT(refused(foreign), HasSubstr("steps"));
  }
  foreign = now;
  foreign.loss_scale = NAN;
  EXPECT_THAT(refused(foreign), HasSubstr("loss scale"));
  ExpectSameState(ranks.Gathered(0), now);
}

TEST(ZeroStateTest, APlainOptimizerElsewhereHasNoSnapshotHere) {
  GroupWorld world(1);
  Worker& worker = *world.workers[0];
  const Replica replica = Must(Replica::Create(worker, Model({{2}})));
  const RRef there = MakeParameter(worker, "owner0", "x", Wavy({2}, 1));
  const auto optimizer = Must(DistributedOptimizer::Create(worker, Sgd{}, {there}));
  const absl::Status status = TakeSnapshot(*optimizer, replica).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Text(status), HasSubstr("owner0"));
}

TEST(ZeroStateTest, AnOptimizerOverOtherValuesOfThisWorkerHasNoSnapshot) {
  GroupWorld world(1);
  Worker& worker = *world.workers[0];
  const Replica replica = Must(Replica::Create(worker, Model({{2}})));
  CreateOptions rows;
  rows.requires_grad = true;
  rows.rows = true;
  const RRef table = Must(worker.GetOrCreate(worker.name(), "table", Zeros({4, 2}), rows));
  const auto optimizer = Must(DistributedOptimizer::Create(worker, Sgd{}, {table}));
  for (const absl::Status& status : {TakeSnapshot(*optimizer, replica).status(),
                                     LoadSnapshot(*optimizer, replica, OptimizerSnapshot{})}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(Text(status), AllOf(HasSubstr("table"), HasSubstr("no parameter of the replica")));
  }
}

}  // namespace
}  // namespace psd
