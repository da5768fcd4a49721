// Sharded optimizers over parameters on emulated devices: the steps and the state of a plain
// optimizer on the host. With seed 0 a device does only what is waited for.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/psd.h"
#include "client/zero/zero_redundancy_optimizer.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/device/emulated/emulated_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/collectives/group_world.h"
#include "tests/client/ddp/replica_world.h"
#include "tests/client/test_world.h"
#include "tests/client/zero/zero_world.h"
#include "tests/device/test_device.h"
#include "tests/kernels/cpu_fuses.h"

namespace psd {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// Small ones that travel together, one that travels alone, one without elements, a scalar.
std::vector<Shape> Shapes() {
  return {{7}, {300, 300}, {}, {0}, {64, 3}, {5, 5}, {13}};
}

std::vector<ReplicaParameter> Alternating(const std::string& even, const std::string& odd) {
  return On({even, odd, even, odd, even, odd, even}, Model(Shapes()));
}

void ExpectSame(const Tensor& there, const Tensor& here, const std::string& what) {
  if (testing::CpuFuses()) {
    EXPECT_TRUE(SameBits(there, here)) << what;
  } else {
    EXPECT_THAT(Elements(Must(there.ToHost())), Pointwise(FloatNear(1e-5f), Elements(here)))
        << what;
  }
}

class ZeroDeviceTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  std::vector<std::vector<ReplicaParameter>> Parameters() const {
    return {Alternating("emu:0", "cpu"), Alternating("emu:1", "emu:0"),
            Alternating("cpu", "emu:1")};
  }
  // All ranks have the elements of a plain trainer, on their own devices.
  static void ExpectElements(const ZeroWorld& ranks, const PlainTrainer& plain,
                             const std::string& when) {
    const std::vector<Tensor> expected = Must(plain.replica->Elements());
    for (const Replica& replica : ranks.replicas) {
      const std::vector<Tensor> elements = Must(replica.Elements());
      for (size_t i = 0; i < elements.size(); ++i) {
        EXPECT_EQ(elements[i].device(), replica.parameters()[i].device) << i;
        ExpectSame(elements[i], expected[i], absl::StrCat("parameter ", i, " ", when));
      }
    }
  }

  std::vector<std::shared_ptr<EmulatedDevice>> devices_ = testing::NewTestDevices(2, GetParam());
};

INSTANTIATE_TEST_SUITE_P(Seeds, ZeroDeviceTest, ::testing::Values(0, 1));

TEST_P(ZeroDeviceTest, ZERO_20_StepsOnSeveralDevicesAreThoseOfAPlainOptimizerOnTheHost) {
  Sgd momentum;
  momentum.momentum = 0.9;
  for (const OptimizerSpec& spec :
       {OptimizerSpec(momentum), OptimizerSpec(Adam{0.1}), OptimizerSpec(RmsProp{})}) {
    SCOPED_TRACE(spec.ToString());
    ZeroWorld ranks(Parameters(), {devices_[0], devices_[1]}, spec);
    PlainTrainer plain(Model(Shapes()), spec);
    const size_t before = devices_[0]->kernels_launched() + devices_[1]->kernels_launched();
    for (int step = 0; step < 3; ++step) {
      ZeroStepOptions options;
      StepOptions same;
      if (step == 2) options.clip_norm = same.clip_norm = 0.5;
      ranks.Step(step, options);
      plain.Step(Gradients(*plain.replica, step), same);
      ExpectElements(ranks, plain, absl::StrCat("after step ", step));
    }
    EXPECT_GT(devices_[0]->kernels_launched() + devices_[1]->kernels_launched(), before);
  }
}

TEST_P(ZeroDeviceTest, StateIsGatheredFromDevicesAndLoadedToThem) {
  const OptimizerSpec spec = Adam{0.1};
  ZeroWorld ranks(Parameters(), {devices_[0], devices_[1]}, spec);
  PlainTrainer plain(Model(Shapes()), spec);
  for (int step = 0; step < 2; ++step) {
    ranks.Step(step);
    plain.Step(Gradients(*plain.replica, step));
  }
  const OptimizerSnapshot state = Must(TakeSnapshot(*plain.optimizer, *plain.replica));
  const OptimizerSnapshot gathered = ranks.Gathered(/*to=*/1);
  ASSERT_EQ(gathered.groups[0].parameters.size(), Shapes().size());
  for (size_t i = 0; i < Shapes().size(); ++i) {
    for (const auto& [name, array] : gathered.groups[0].parameters[i].state)
      ExpectSame(array, state.groups[0].parameters[i].state.at(name), absl::StrCat(name, " ", i));
  }
  ranks.Step(2);  // forgotten by the load
  ranks.OnAll([&](int rank) {
    std::vector<std::pair<size_t, Tensor>> elements;
    const std::vector<Tensor> before = Must(plain.replica->Elements());
    for (size_t i = 0; i < before.size(); ++i) elements.emplace_back(i, before[i]);
    EXPECT_TRUE(ranks.replicas[rank].Assign(elements).ok());
    const absl::Status loaded = ranks.zero[rank]->Load(state);
    EXPECT_TRUE(loaded.ok()) << loaded;
  });
  ranks.Step(3);
  plain.Step(Gradients(*plain.replica, 3));
  ExpectElements(ranks, plain, "after the load");
}

TEST_P(ZeroDeviceTest, AStepAveragesAndStepsLossesOfParametersOnDevices) {
  const std::vector<Shape> shapes = {{5}, {3, 3}};
  ReplicaWorld ranks({On({"emu:0", "emu:1"}, Model(shapes)), On({"emu:1", "emu:0"}, Model(shapes))},
                     {devices_[0], devices_[1]});
  PlainTrainer plain(Model(shapes), Sgd{0.1});
  ranks.OnAll([&](int rank) {
    BufferedOptions overlap;
    overlap.overlap = true;
    const auto ddp =
        Must(BufferedDataParallel::Create(ranks.groups[rank], ranks.replicas[rank], overlap));
    ZeroOptions options;
    options.averaging = ddp.get();
    const auto zero = Must(ZeroRedundancyOptimizer::Create(ranks.groups[rank], ranks.replicas[rank],
                                                           Sgd{0.1}, options));
    for (int step = 0; step < 2; ++step) {
      Context context = Must(ranks.replicas[rank].worker().NewContext());
      const std::vector<Variable> p = Must(ranks.replicas[rank].Variables(context));
      const double factor = 1 + 2 * rank;
      ASSERT_TRUE(ddp->Backward(context, {Sum(p[0] * p[0] * factor), Sum(p[1] * factor)}).ok());
      const absl::Status stepped = zero->Step(context);
      ASSERT_TRUE(stepped.ok()) << stepped;
    }
  });
  for (int step = 0; step < 2; ++step) {
    Context context = Must(plain.worker->NewContext());
    const std::vector<Variable> p = Must(plain.replica->Variables(context));
    ASSERT_TRUE(context.Backward({Sum(p[0] * p[0] * 2.0), Sum(p[1] * 2.0)}).ok());
    ASSERT_TRUE(plain.optimizer->Step(context).ok());
  }
  const std::vector<Tensor> expected = Must(plain.replica->Elements());
  for (const Replica& replica : ranks.replicas) {
    const std::vector<Tensor> elements = Must(replica.Elements());
    for (size_t i = 0; i < elements.size(); ++i)
      EXPECT_THAT(Elements(Must(elements[i].ToHost())),
                  Pointwise(FloatNear(1e-6f), Elements(expected[i])));
  }
}

TEST(ZeroDevicesTest, ZERO_17_RanksWhoseParametersShareOtherDevicesGetAnErrorThatSaysSo) {
  const auto devices = testing::NewTestDevices(2, /*seed=*/0);
  const std::vector<Shape> shapes = {{4}, {5}};
  ReplicaWorld world({On({"emu:0", "emu:1"}, Model(shapes)), On({"emu:0", "emu:0"}, Model(shapes))},
                     {devices[0], devices[1]});
  world.OnAll([&](int rank) {
    const absl::Status differ =
        ZeroRedundancyOptimizer::Create(world.groups[rank], world.replicas[rank], Sgd{}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(differ)) << differ;
    EXPECT_THAT(std::string(differ.message()), HasSubstr("digest"));
  });
}

}  // namespace
}  // namespace psd
