// Replicas with parameters on one device, which all ranks share, and on the host: averages and
// sharded steps as of ranks on the host. The parameter is the number of ranks. On a GPU, one rank
// needs no exchange, and two ranks exchange through the host because NCCL needs a GPU for each.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/psd.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/ddp/replica_world.h"
#include "tests/client/test_world.h"
#include "tests/client/zero/zero_world.h"
#include "tests/device/device_under_test.h"
#include "tests/kernels/cpu_fuses.h"

namespace psd {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

// Small ones that travel together, ones that travel alone, one without elements, a scalar.
std::vector<Shape> Shapes() {
  return {{7}, {300, 300}, {}, {0}, {300, 100}, {5, 5}, {13}};
}

std::vector<ReplicaParameter> Alternating() {
  const std::string there = testing::NameOfDevice();
  return On({there, "cpu", there, "cpu", there, "cpu", there}, Model(Shapes()));
}

// `exact`: with the bits of the host, if its kernels fuse as those of devices do.
void ExpectSame(const Tensor& there, const Tensor& here, const std::string& what,
                bool exact = true) {
  if (exact && testing::CpuFuses()) {
    EXPECT_TRUE(SameBits(there, here)) << what;
  } else {
    EXPECT_THAT(Elements(Must(there.ToHost())), Pointwise(FloatNear(1e-5f), Elements(here)))
        << what;
  }
}

class RanksOnDeviceTest : public testing::OnDevice<::testing::TestWithParam<int>> {
 protected:
  static testing::DeviceUnderTestOptions Options() {
    testing::DeviceUnderTestOptions options;
    options.budget_bytes = size_t{16} << 20;
    options.seed = 1;
    return options;
  }
  static int ranks() { return GetParam(); }
  static std::vector<std::vector<ReplicaParameter>> OfEachRank() {
    return std::vector<std::vector<ReplicaParameter>>(static_cast<size_t>(ranks()), Alternating());
  }
  static void ExpectOnTheirDevices(const Replica& replica, const std::vector<Tensor>& tensors) {
    ASSERT_EQ(tensors.size(), replica.size());
    for (size_t i = 0; i < tensors.size(); ++i)
      EXPECT_EQ(tensors[i].device(), replica.parameters()[i].device) << "parameter " << i;
  }
  // All ranks have the elements of a plain trainer, on their own devices.
  static void ExpectElements(const ReplicaWorld& world, const PlainTrainer& plain,
                             const std::string& when, bool exact = true) {
    const std::vector<Tensor> expected = Must(plain.replica->Elements());
    for (const Replica& replica : world.replicas) {
      const std::vector<Tensor> elements = Must(replica.Elements());
      ExpectOnTheirDevices(replica, elements);
      for (size_t i = 0; i < elements.size(); ++i)
        ExpectSame(elements[i], expected[i], absl::StrCat("parameter ", i, " ", when), exact);
    }
  }
  // The averages of gradients that differ from rank to rank.
  static std::vector<std::vector<Tensor>> Averages(const ReplicaWorld& world) {
    std::vector<std::vector<Tensor>> averages(world.replicas.size());
    world.OnAll([&](int rank) {
      const Replica& replica = world.replicas[rank];
      const auto ddp = Must(BufferedDataParallel::Create(world.groups[rank], replica));
      const Context context = WithGradients(replica, Gradients(replica, 1 + rank));
      AllReduceOptions options;
      options.samples = rank + 2;
      const absl::Status done = ddp->AllReduceGradients(context, options);
      EXPECT_TRUE(done.ok()) << done;
      averages[rank] = Must(replica.Gradients(context));
    });
    return averages;
  }

  const std::shared_ptr<Device> device_ = testing::OpenDeviceUnderTest(Options());
};

INSTANTIATE_TEST_SUITE_P(Ranks, RanksOnDeviceTest, ::testing::Values(1, 2));

TEST_P(RanksOnDeviceTest, GradientsAreAveragedWithTheBitsOfTheHost) {
  const ReplicaWorld world(OfEachRank(), {device_}), on_host(ranks(), Model(Shapes()));
  const std::vector<std::vector<Tensor>> there = Averages(world), here = Averages(on_host);
  for (size_t rank = 0; rank < there.size(); ++rank) {
    ExpectOnTheirDevices(world.replicas[rank], there[rank]);
    for (size_t i = 0; i < there[rank].size(); ++i)
      EXPECT_TRUE(SameBits(there[rank][i], here[rank][i])) << i << " on rank " << rank;
  }
}

TEST_P(RanksOnDeviceTest, RanksThatBeganDifferentlyTakeTheElementsOfOne) {
  ReplicaWorld world(OfEachRank(), {device_});
  const int root = ranks() - 1;
  world.OnAll([&](int rank) {
    Replica& replica = world.replicas[rank];
    std::vector<std::pair<size_t, Tensor>> own;
    const std::vector<Tensor> numbers = Gradients(replica, 100 + rank);
    for (size_t i = 0; i < numbers.size(); ++i) own.emplace_back(i, numbers[i]);
    ASSERT_TRUE(replica.Assign(own).ok());
    const absl::Status done = replica.Synchronize(*world.groups[rank], root);
    ASSERT_TRUE(done.ok()) << done;
    const std::vector<Tensor> elements = Must(replica.Elements());
    ExpectOnTheirDevices(replica, elements);
    const std::vector<Tensor> expected = Gradients(replica, 100 + root);
    for (size_t i = 0; i < elements.size(); ++i)
      EXPECT_TRUE(SameBits(elements[i], expected[i])) << i << " on rank " << rank;
  });
}

TEST_P(RanksOnDeviceTest, ShardedStepsAreThoseOfAPlainOptimizerOnTheHost) {
  Sgd momentum;
  momentum.momentum = 0.9;
  for (const OptimizerSpec& spec :
       {OptimizerSpec(momentum), OptimizerSpec(Adam{0.1}), OptimizerSpec(RmsProp{})}) {
    SCOPED_TRACE(spec.ToString());
    ZeroWorld world(OfEachRank(), {device_}, spec);
    PlainTrainer plain(Model(Shapes()), spec);
    for (int step = 0; step < 2; ++step) {
      world.Step(step);
      plain.Step(Gradients(*plain.replica, step));
      ExpectElements(world, plain, absl::StrCat("after step ", step));
    }
    ZeroStepOptions clipped;
    StepOptions same;
    clipped.clip_norm = same.clip_norm = 0.5;
    world.Step(2, clipped);
    plain.Step(Gradients(*plain.replica, 2), same);
    // The device adds up the squares in another order.
    ExpectElements(world, plain, "after the clipped step", /*exact=*/false);
  }
}

TEST_P(RanksOnDeviceTest, StateIsGatheredFromTheDeviceAndLoadedToIt) {
  const OptimizerSpec spec = Adam{0.1};
  ZeroWorld world(OfEachRank(), {device_}, spec);
  PlainTrainer plain(Model(Shapes()), spec);
  for (int step = 0; step < 2; ++step) {
    world.Step(step);
    plain.Step(Gradients(*plain.replica, step));
  }
  const OptimizerSnapshot state = Must(TakeSnapshot(*plain.optimizer, *plain.replica));
  const OptimizerSnapshot gathered = world.Gathered(/*to=*/ranks() - 1);
  ASSERT_EQ(gathered.groups[0].parameters.size(), Shapes().size());
  for (size_t i = 0; i < Shapes().size(); ++i) {
    for (const auto& [name, array] : gathered.groups[0].parameters[i].state)
      ExpectSame(array, state.groups[0].parameters[i].state.at(name), absl::StrCat(name, " ", i));
  }
  world.Step(2);  // forgotten by the load
  world.OnAll([&](int rank) {
    std::vector<std::pair<size_t, Tensor>> elements;
    const std::vector<Tensor> before = Must(plain.replica->Elements());
    for (size_t i = 0; i < before.size(); ++i) elements.emplace_back(i, before[i]);
    EXPECT_TRUE(world.replicas[rank].Assign(elements).ok());
    const absl::Status loaded = world.zero[rank]->Load(state);
    EXPECT_TRUE(loaded.ok()) << loaded;
  });
  world.Step(3);
  plain.Step(Gradients(*plain.replica, 3));
  ExpectElements(world, plain, "after the load");
}

// The loss of a rank is sum(p * p * c) for each parameter, where the mean of the ranks' c is 2.
TEST_P(RanksOnDeviceTest, GradientsTravelWhileBackwardGoesOnAndAreStepped) {
  const auto losses = [](const std::vector<Variable>& parameters, double factor) {
    std::vector<Variable> all;
    for (const Variable& each : parameters) all.push_back(Sum(each * each * factor));
    return all;
  };
  ReplicaWorld world(OfEachRank(), {device_});
  PlainTrainer plain(Model(Shapes()), Sgd{0.1});
  world.OnAll([&](int rank) {
    BufferedOptions overlap;
    overlap.overlap = true;
    const auto ddp =
        Must(BufferedDataParallel::Create(world.groups[rank], world.replicas[rank], overlap));
    ZeroOptions options;
    options.averaging = ddp.get();
    const auto zero = Must(ZeroRedundancyOptimizer::Create(world.groups[rank], world.replicas[rank],
                                                           Sgd{0.1}, options));
    const double factor = ranks() == 1 ? 2 : 1 + 2 * rank;
    for (int step = 0; step < 2; ++step) {
      Context context = Must(world.replicas[rank].worker().NewContext());
      const std::vector<Variable> parameters = Must(world.replicas[rank].Variables(context));
      const absl::Status back = ddp->Backward(context, losses(parameters, factor));
      ASSERT_TRUE(back.ok()) << back;
      const absl::Status stepped = zero->Step(context);
      ASSERT_TRUE(stepped.ok()) << stepped;
    }
  });
  for (int step = 0; step < 2; ++step) {
    Context context = Must(plain.worker->NewContext());
    ASSERT_TRUE(context.Backward(losses(Must(plain.replica->Variables(context)), 2)).ok());
    ASSERT_TRUE(plain.optimizer->Step(context).ok());
  }
  ExpectElements(world, plain, "after two steps", /*exact=*/false);
}

}  // namespace
}  // namespace psd
