// Replicas with parameters on emulated devices: where parameters and gradients are, and averages
// with the bits of replicas on the host. With seed 0 a device does only what is waited for.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/ddp/buffer_groups.h"
#include "client/ddp/buffered_all_reduce.h"
#include "client/ddp/buffered_data_parallel.h"
#include "client/ddp/replica.h"
#include "client/psd.h"
#include "core/base/device.h"
#include "core/base/status.h"
#include "core/device/emulated/emulated_device.h"
#include "core/tensor/copy_to.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/ddp/replica_world.h"
#include "tests/client/test_world.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

std::vector<std::string> DevicesOf(const Replica& replica) {
  std::vector<std::string> names;
  for (const ReplicatedParameter& parameter : replica.parameters())
    names.emplace_back(DeviceName(parameter.device));
  return names;
}

void ExpectOnTheirDevices(const Replica& replica, const std::vector<Tensor>& tensors) {
  ASSERT_EQ(tensors.size(), replica.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    EXPECT_EQ(tensors[i].device(), replica.parameters()[i].device) << "parameter " << i;
}

// A loss for each parameter, on its device. The gradients have the same bits on every device.
std::vector<Variable> Losses(const std::vector<Variable>& parameters, double factor) {
  std::vector<Variable> losses;
  for (const Variable& each : parameters) losses.push_back(Sum(each * each * factor));
  return losses;
}

class DeviceReplicaTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  DeviceReplicaTest() {
    WorkerOptions options;
    options.name = "alone";
    options.devices = {devices_[0], devices_[1]};
    options.logger = NewNullLogger();
    worker_ = Must(Worker::Start(std::move(options)));
  }

  std::vector<std::shared_ptr<EmulatedDevice>> devices_ = testing::NewTestDevices(2, GetParam());
  std::unique_ptr<Worker> worker_;
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceReplicaTest, ::testing::Values(0, 1));

TEST_P(DeviceReplicaTest, ParametersAreWhereTheyAreAskedToBe) {
  std::vector<ReplicaParameter> parameters = On({"emu:1", "", "cpu"}, Model({{2}, {3}, {4}}));
  EXPECT_THAT(DevicesOf(Must(Replica::Create(*worker_, parameters))),
              ElementsAre("emu:1", "cpu", "cpu"));
  EXPECT_THAT(DevicesOf(Must(Replica::Create(*worker_, parameters, "emu:0"))),
              ElementsAre("emu:1", "emu:0", "cpu"));
  EXPECT_THAT(DevicesOf(Must(Replica::Create(*worker_, parameters, "auto"))),
              ElementsAre("emu:1", "emu:0", "cpu"))
      << "the device with the most room";
  parameters = Model({{2}, {3}});
  parameters[1].elements = Must(CopyTo(devices_[1].get(), parameters[1].elements));
  const Replica beside = Must(Replica::Create(*worker_, parameters));
  EXPECT_THAT(DevicesOf(beside), ElementsAre("cpu", "emu:1")) << "that of the elements";
  EXPECT_TRUE(SameBits(Must(beside.Elements())[1], parameters[1].elements));
}

TEST_P(DeviceReplicaTest, AnUnknownDeviceAndAFullOneAreRefusedWithTheParametersName) {
  const absl::Status unknown =
      Replica::Create(*worker_, On({"emu:0", "emu:7"}, Model({{2}, {3}}))).status();
  EXPECT_TRUE(absl::IsInvalidArgument(unknown)) << unknown;
  EXPECT_THAT(Text(unknown), AllOf(HasSubstr("p1"), HasSubstr("emu:7"), HasSubstr("emu:1")));
  std::vector<ReplicaParameter> large = Model({{2}, {3}});
  large[1].elements = Must(Tensor::Zeros({5'000'000}, DType::kF32));
  const absl::Status full = Replica::Create(*worker_, large, "emu:0").status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(Text(full), AllOf(HasSubstr("p1"), HasSubstr("emu:0")));
  EXPECT_THAT(Must(worker_->List("alone")), SizeIs(0)) << "p0 is gone again";
  EXPECT_EQ(devices_[0]->used_bytes(), 0u);
}

TEST_P(DeviceReplicaTest, AWorkerHasADeviceOnce) {
  WorkerOptions options;
  options.name = "twice";
  options.devices = {devices_[1], devices_[0], devices_[1]};
  options.logger = NewNullLogger();
  const absl::Status twice = Worker::Start(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(twice)) << twice;
  EXPECT_THAT(Text(twice), HasSubstr("two devices called emu:1"));
  options.devices.assign(1, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(Worker::Start(options).status()));
}

TEST_P(DeviceReplicaTest, GradientsOfBackwardAndGivenOnesAreOnTheParametersDevice) {
  const Replica there = Must(Replica::Create(*worker_, Model({{7}, {3, 2}}), "emu:0"));
  const PlainTrainer here(Model({{7}, {3, 2}}));
  Context context = Must(worker_->NewContext()), beside = Must(here.worker->NewContext());
  for (int pass = 0; pass < 2; ++pass) {  // the gradients of two passes add up
    ASSERT_TRUE(context.Backward(Losses(Must(there.Variables(context)), 0.3 + pass)).ok());
    ASSERT_TRUE(beside.Backward(Losses(Must(here.replica->Variables(beside)), 0.3 + pass)).ok());
  }
  const std::vector<Tensor> gradients = Must(there.Gradients(context));
  ExpectOnTheirDevices(there, gradients);
  const std::vector<Tensor> expected = Must(here.replica->Gradients(beside));
  for (size_t i = 0; i < gradients.size(); ++i)
    EXPECT_TRUE(SameBits(gradients[i], expected[i])) << i;
  const Tensor given = Wavy({7}, 5);
  ASSERT_TRUE(there.SetGradients(context, {given, Tensor()}).ok());
  const std::vector<Tensor> replaced = Must(there.Gradients(context));
  ExpectOnTheirDevices(there, replaced);
  EXPECT_TRUE(SameBits(replaced[0], given));
}

TEST_P(DeviceReplicaTest, ElementsAreReplacedFromAnywhereAndReadOnTheDevice) {
  Replica there = Must(Replica::Create(*worker_, On({"emu:0", "cpu"}, Model({{5}, {6}}))));
  const Tensor first = Wavy({5}, 11), second = Wavy({6}, 12);
  ASSERT_TRUE(there.Assign({{0, first}, {1, Must(CopyTo(devices_[1].get(), second))}}).ok());
  const std::vector<Tensor> elements = Must(there.Elements());
  ExpectOnTheirDevices(there, elements);
  EXPECT_TRUE(SameBits(elements[0], first));
  EXPECT_TRUE(SameBits(elements[1], second));
}

// Three ranks with equal replicas, of which each has its parameters elsewhere, and three ranks
// without devices.
class DeviceRanksTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  static constexpr int kRanks = 3;
  static std::vector<Shape> Shapes() { return {{7}, {33, 5}, {1}, {13}, {4}}; }
  static std::vector<ReplicaParameter> Alternating(const std::string& even,
                                                   const std::string& odd) {
    return On({even, odd, even, odd, even}, Model(Shapes()));
  }
  using Averages = std::vector<std::unique_ptr<BufferedDataParallel>>;
  static Averages AveragesOf(const ReplicaWorld& world, const BufferedOptions& options = {}) {
    Averages averages;
    for (int rank = 0; rank < kRanks; ++rank)
      averages.push_back(
          Must(BufferedDataParallel::Create(world.groups[rank], world.replicas[rank], options)));
    return averages;
  }
  // The gradients that `average` leaves in a new context of each rank.
  using Average = std::function<absl::Status(int rank, const Replica& replica, Context& context)>;
  static std::vector<std::vector<Tensor>> Averaged(const ReplicaWorld& world,
                                                   const Average& average) {
    std::vector<std::vector<Tensor>> gradients(kRanks);
    world.OnAll([&](int rank) {
      const Replica& replica = world.replicas[rank];
      Context context = Must(replica.worker().NewContext());
      const absl::Status done = average(rank, replica, context);
      EXPECT_TRUE(done.ok()) << done;
      gradients[rank] = Must(replica.Gradients(context));
    });
    return gradients;
  }
  void ExpectSameOnDevices(const std::vector<std::vector<Tensor>>& there,
                           const std::vector<std::vector<Tensor>>& here) const {
    for (int rank = 0; rank < kRanks; ++rank) {
      ExpectOnTheirDevices(world_.replicas[rank], there[rank]);
      for (size_t i = 0; i < there[rank].size(); ++i)
        EXPECT_TRUE(SameBits(there[rank][i], here[rank][i])) << i << " on rank " << rank;
    }
  }

  std::vector<std::shared_ptr<EmulatedDevice>> devices_ = testing::NewTestDevices(2, GetParam());
  ReplicaWorld world_{
      {Alternating("emu:0", "cpu"), Alternating("emu:1", "emu:0"), Alternating("cpu", "emu:1")},
      {devices_[0], devices_[1]}};
  const ReplicaWorld on_host_{kRanks, Model(Shapes())};
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceRanksTest, ::testing::Values(0, 1));

TEST_P(DeviceRanksTest, DDP_20_GradientsOfEachDeviceAreAveragedInABufferOfItsOwn) {
  const Averages there = AveragesOf(world_), here = AveragesOf(on_host_);
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<BufferGroup> buffers = Must(there[rank]->Buffers());
    ASSERT_THAT(buffers, SizeIs(2));
    EXPECT_THAT(buffers[0].parameters, ElementsAre(0, 2, 4));
    EXPECT_THAT(buffers[1].parameters, ElementsAre(1, 3));
    EXPECT_EQ(buffers[0].device, world_.replicas[rank].parameters()[0].device);
    EXPECT_EQ(buffers[1].device, world_.replicas[rank].parameters()[1].device);
  }
  const auto average = [](const Averages& averages) {
    return [&averages](int rank, const Replica& replica, Context& context) -> absl::Status {
      std::vector<Tensor> gradients = Gradients(replica, 1 + rank);
      if (rank == 1) gradients[3] = Tensor();  // missing: zeros
      PSD_RETURN_IF_ERROR(replica.SetGradients(context, gradients));
      AllReduceOptions options;
      options.samples = rank + 2;
      return averages[rank]->AllReduceGradients(context, options);
    };
  };
  ExpectSameOnDevices(Averaged(world_, average(there)), Averaged(on_host_, average(here)));
}

TEST_P(DeviceRanksTest, DDP_20_DDP_29_GradientsOfDevicesTravelWhileBackwardGoesOn) {
  BufferedOptions options;
  options.overlap = true;
  options.buffer_elements = 8;
  const Averages there = AveragesOf(world_, options), here = AveragesOf(on_host_);
  const auto average = [](const Averages& averages) {
    return [&averages](int rank, const Replica& replica, Context& context) -> absl::Status {
      {
        const auto no_sync = averages[rank]->NoSync();
        PSD_ASSIGN_OR_RETURN(const auto parameters, replica.Variables(context));
        PSD_RETURN_IF_ERROR(averages[rank]->Backward(context, Losses(parameters, 0.3 + rank)));
      }
      PSD_ASSIGN_OR_RETURN(const auto parameters, replica.Variables(context));
      return averages[rank]->Backward(context, Losses(parameters, 1.7 - rank));
    };
  };
  ExpectSameOnDevices(Averaged(world_, average(there)), Averaged(on_host_, average(here)));
}

TEST_P(DeviceRanksTest, RanksThatBeganDifferentlyTakeTheElementsOfOne) {
  world_.OnAll([&](int rank) {
    Replica& replica = world_.replicas[rank];
    std::vector<std::pair<size_t, Tensor>> own;
    const std::vector<Tensor> numbers = Gradients(replica, 100 + rank);
    for (size_t i = 0; i < numbers.size(); ++i) own.emplace_back(i, numbers[i]);
    ASSERT_TRUE(replica.Assign(own).ok());
    const absl::Status done = replica.Synchronize(*world_.groups[rank], /*root=*/1);
    ASSERT_TRUE(done.ok()) << done;
    const std::vector<Tensor> elements = Must(replica.Elements());
    ExpectOnTheirDevices(replica, elements);
    const std::vector<Tensor> expected = Gradients(replica, 101);
    for (size_t i = 0; i < elements.size(); ++i)
      EXPECT_TRUE(SameBits(elements[i], expected[i])) << i << " on rank " << rank;
  });
}

// Two ranks whose parameters share other devices. Both have two messages of f32[8] each, with other
// parameters in them, so that only their label can tell.
class OtherDevicesTest : public ::testing::Test {
 protected:
  static constexpr size_t kParameters = 4;

  static void ExpectRefused(const absl::Status& differ) {
    EXPECT_TRUE(absl::IsFailedPrecondition(differ)) << differ;
    EXPECT_THAT(Text(differ), HasSubstr("the ranks differ in call 0"));
  }

  const std::vector<Shape> shapes_ = std::vector<Shape>(kParameters, Shape{4});
  const std::vector<std::shared_ptr<EmulatedDevice>> devices_ =
      testing::NewTestDevices(2, /*seed=*/0);
  ReplicaWorld world_{{On({"emu:0", "emu:1", "emu:0", "emu:1"}, Model(shapes_)),
                       On({"emu:0", "emu:0", "emu:1", "emu:1"}, Model(shapes_))},
                      {devices_[0], devices_[1]}};
};

TEST_F(OtherDevicesTest, GradientsAreNotAveraged) {
  world_.OnAll([&](int rank) {
    const auto ddp = Must(BufferedDataParallel::Create(world_.groups[rank], world_.replicas[rank]));
    const Replica& replica = world_.replicas[rank];
    const Context context = WithGradients(replica, Gradients(replica, 1));
    ExpectRefused(ddp->AllReduceGradients(context));
  });
}

TEST_F(OtherDevicesTest, ElementsAreNotSynchronized) {
  world_.OnAll([&](int rank) {
    ExpectRefused(world_.replicas[rank].Synchronize(*world_.groups[rank], /*root=*/0));
  });
}

TEST(DevicesOfRanksTest, AGradientOnAnotherDeviceThanItsParameterIsRefused) {
  const auto devices = testing::NewTestDevices(1, /*seed=*/0);
  ReplicaWorld world({On({"emu:0"}, Model({{4}}))}, {devices[0]});
  const auto averaging =
      Must(BufferedAllReduce::Create(world.groups[0], world.replicas[0].parameters()));
  const absl::Status refused = averaging.Check({Wavy({4}, 1)});
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(Text(refused), HasSubstr("p0, f32[4], is on emu:0 and has a gradient on cpu"));
}

}  // namespace
}  // namespace psd
