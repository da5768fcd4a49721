// A trainer says on which of its devices it wants the tensors that a call gives.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/psd.h"
#include "core/autograd/functions/row_repeats.h"
#include "core/base/buffer.h"
#include "core/base/device.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device_pieces/piece_methods.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_owner.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

CallOptions On(const std::string& device) {
  CallOptions options;
  options.device = device;
  return options;
}

const Tensor& TensorOf(const Value& value) {
  return value.As<Variable>()->tensor();
}

std::vector<float> HostElements(const Tensor& tensor) {
  return Elements(Must(tensor.ToHost()));
}

bool AllAre(float element, const std::vector<float>& elements) {
  return std::all_of(elements.begin(), elements.end(),
                     [element](float each) { return each == element; });
}

// The owner's device and the trainer's first one have the same name, and are two devices.
class CallDevicesTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  static constexpr size_t kBytes = size_t{32} << 20;

  std::unique_ptr<Worker> Trainer() {
    WorkerOptions options;
    options.name = "trainer";
    options.owners = {host_.owner().address()};
    options.listen = "127.0.0.1:0";
    for (const auto& device : devices_) options.devices.push_back(device);
    return Must(Worker::Start(std::move(options)));
  }
  RRef Make(const std::string& owner, const std::string& name, const std::string& device,
            int64_t elements = 4) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    return Must(trainer_->GetOrCreate(owner, name, Full({elements}, 2), options));
  }

  // Takes all memory that is left on the device.
  static std::vector<std::shared_ptr<Block>> TakeAll(Device& device) {
    std::vector<std::shared_ptr<Block>> taken;
    for (size_t bytes = kBytes; bytes > 0; bytes /= 2) {
      for (auto block = device.memory().Allocate(bytes); block.ok();
           block = device.memory().Allocate(bytes)) {
        taken.push_back(*std::move(block));
      }
    }
    return taken;
  }

  DeviceOwner host_{"owner", testing::NewTestDevice(GetParam(), kBytes)};
  const std::vector<std::shared_ptr<EmulatedDevice>> devices_ =
      testing::NewTestDevices(2, GetParam(), kBytes);
  std::unique_ptr<Worker> trainer_ = Trainer();
};

INSTANTIATE_TEST_SUITE_P(Seeds, CallDevicesTest, ::testing::Values(0, 1));

// No map between the devices of the workers is needed: owner and caller each name their own.
TEST_P(CallDevicesTest, RPC_64_ACallGivesItsTensorsWhereTheCallerWantsThem) {
  constexpr auto kLarge = static_cast<int64_t>(device_pieces::kPieceBytes);  // four pieces
  const std::vector<RRef> values = {Make("owner", "w", "emu:0"), Make("owner", "b", "cpu"),
                                    Make("owner", "large", "emu:0", kLarge)};
  for (Device* device : {static_cast<Device*>(nullptr), static_cast<Device*>(devices_[0].get()),
                         static_cast<Device*>(devices_[1].get())}) {
    const CallOptions there = On(std::string(DeviceName(device)));
    for (const Value& value : Must(trainer_->ToHere(values, there))) {
      EXPECT_EQ(TensorOf(value).device(), device);
      EXPECT_TRUE(AllAre(2, HostElements(TensorOf(value))));
    }
    for (const PulledParameter& pulled : Must(trainer_->Pull(values, there))) {
      EXPECT_EQ(pulled.elements.device(), device);
      EXPECT_TRUE(AllAre(2, HostElements(pulled.elements)));
    }
    const Values later = Must(trainer_->ToHereAsync(values, there).Wait());
    EXPECT_EQ(TensorOf(later[2]).device(), device);
    const Values sums =
        Must(trainer_->RpcSync("owner", Function::Operator("relu", 1), {values[0]}, there));
    EXPECT_EQ(TensorOf(sums[0]).device(), device);
    EXPECT_THAT(HostElements(TensorOf(sums[0])), ElementsAre(2, 2, 2, 2));
  }
}

TEST_P(CallDevicesTest, RPC_64_AnUnknownDeviceFailsThatCallOnly) {
  const RRef w = Make("owner", "w", "emu:0");
  for (const std::string name : {"emu:7", "auto", ""}) {
    for (const absl::Status& refused :
         {trainer_->ToHere({w}, On(name)).status(), trainer_->Pull({w}, On(name)).status(),
          trainer_->RpcSync("owner", Function::Operator("relu", 1), {w}, On(name)).status()}) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
      EXPECT_THAT(std::string(refused.message()),
                  AllOf(HasSubstr("'" + name + "'"), HasSubstr("cpu, emu:0, emu:1")));
    }
  }
  EXPECT_TRUE(trainer_->Pull({w}, On("emu:1")).ok());
}

TEST_P(CallDevicesTest, RPC_64_ADeviceWithoutRoomRefusesAndOthersGoOn) {
  const RRef w = Make("owner", "w", "emu:0"), large = Make("owner", "large", "emu:0", 1 << 20);
  const auto taken = TakeAll(*devices_[0]);
  for (const RRef& value : {w, large}) {
    const absl::Status full = trainer_->Pull({value}, On("emu:0")).status();
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
    EXPECT_THAT(std::string(full.message()),
                AllOf(HasSubstr("emu:0"), HasSubstr(std::to_string(kBytes))));
    EXPECT_TRUE(trainer_->Pull({value}, On("emu:1")).ok());
  }
}

TEST_P(CallDevicesTest, WhatIsThereAlreadyIsNotCopied) {
  const RRef w = Make("trainer", "w", "emu:0"), b = Make("trainer", "b", "cpu");
  const size_t copies = devices_[0]->copies_added(), used = devices_[0]->used_bytes();
  Context context = Must(trainer_->NewContext());
  CallOptions recorded = On("emu:0");
  recorded.context = &context;
  const Values there = Must(trainer_->ToHere({w}, recorded));
  const auto pulled = Must(trainer_->Pull({w}, On("emu:0")));
  EXPECT_EQ(devices_[0]->copies_added(), copies);
  EXPECT_EQ(devices_[0]->used_bytes(), used);
  EXPECT_EQ(pulled[0].elements.address(), TensorOf(there[0]).address());
  EXPECT_EQ(TensorOf(there[0]).device(), devices_[0].get());

  // Otherwise it is copied.
  EXPECT_TRUE(TensorOf(Must(trainer_->ToHere({w}))[0]).OnHost());
  EXPECT_EQ(TensorOf(Must(trainer_->ToHere({b}, On("emu:0")))[0]).device(), devices_[0].get());
}

// The trainer computes on its own device, whose gradients go to the owner's.
TEST_P(CallDevicesTest, RPC_64_GradientsGoBackFromTheCallersDevice) {
  const std::vector<RRef> parameters = {Make("owner", "w", "emu:0"), Make("owner", "b", "cpu"),
                                        Make("trainer", "own", "emu:0"),
                                        Make("trainer", "host", "cpu")};
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.25}, parameters));
  Context context = Must(trainer_->NewContext());
  CallOptions recorded = On("emu:0");
  recorded.context = &context;
  std::vector<Variable> roots;
  for (const Value& value : Must(trainer_->ToHere(parameters, recorded)))
    roots.push_back(Sum(*value.As<Variable>()));
  ASSERT_TRUE(roots[0].ok()) << roots[0].status();
  EXPECT_EQ(roots[0].tensor().device(), devices_[0].get());
  const absl::Status back = context.Backward(roots);
  ASSERT_TRUE(back.ok()) << back;
  const absl::Status stepped = optimizer->Step(context);
  ASSERT_TRUE(stepped.ok()) << stepped;
  for (const RRef& parameter : parameters) EXPECT_THAT(Read(*trainer_, parameter), Each(1.75f));
}

// Few ids are sent as they are; of many, each is sent once.
TEST_P(CallDevicesTest, RPC_64_RowsAreWhereTheCallerWantsThemAndTheirGradientsGoBack) {
  CreateOptions rows;
  rows.rows = rows.requires_grad = true;
  std::vector<RRef> tables;
  for (const std::string owner : {"owner", "trainer"}) {
    for (const std::string device : {"cpu", "emu:0"}) {
      rows.device = device;
      tables.push_back(
          Must(trainer_->GetOrCreate(owner, "on/" + device, Uniform({64, 2}, -1, 1, 7), rows)));
    }
  }
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Adagrad{0.1}, tables));
  std::vector<int64_t> many;
  for (int64_t i = 0; i < 2 * kMinRepeatedIds; ++i) many.push_back(i * i % 32);
  const Tensor few = Tensor::Of<int64_t>({3}, {3, 1, 3});
  for (const Tensor& ids : {few, Tensor::Of<int64_t>(Shape{2, kMinRepeatedIds}, many)}) {
    for (const std::string device : {"cpu", "emu:0", "emu:1"}) {
      Context context = Must(trainer_->NewContext());
      CallOptions recorded = On(device);
      recorded.context = &context;
      std::vector<RowsQuery> queries;
      for (const RRef& table : tables) queries.push_back({table, ids});
      const std::vector<Variable> found = Must(trainer_->LookUpRows(queries, recorded));
      std::vector<Variable> roots;
      for (const Variable& each : found) {
        EXPECT_EQ(DeviceName(each.tensor().device()), device);
        EXPECT_THAT(HostElements(each.tensor()),
                    Pointwise(FloatNear(1e-5f), HostElements(found[0].tensor())));
        roots.push_back(Sum(each * each));
      }
      const absl::Status back = context.Backward(roots);
      ASSERT_TRUE(back.ok()) << back;
      const absl::Status stepped = optimizer->Step(context);
      ASSERT_TRUE(stepped.ok()) << stepped;
    }
  }
  // All have stepped alike: those that were used, and not the others.
  std::vector<int64_t> every(64);
  std::iota(every.begin(), every.end(), 0);
  std::vector<std::vector<float>> ends;
  for (const RRef& table : tables) {
    const auto all = Must(trainer_->LookUpRows({{table, Tensor::Of<int64_t>({64}, every)}}));
    ends.push_back(Elements(all[0].tensor()));
    EXPECT_THAT(ends.back(), Pointwise(FloatNear(1e-5f), ends[0]));
  }
  rows.device = "cpu";
  const RRef fresh =
      Must(trainer_->GetOrCreate("owner", "fresh", Uniform({64, 2}, -1, 1, 7), rows));
  const auto begin =
      Elements(Must(trainer_->LookUpRows({{fresh, Tensor::Of<int64_t>({64}, every)}}))[0].tensor());
  EXPECT_NE(ends[0][2], begin[2]);      // row 1
  EXPECT_EQ(ends[0][126], begin[126]);  // row 63
}

TEST_P(CallDevicesTest, RPC_64_RowsForAnUnknownOrAFullDeviceAreRefused) {
  CreateOptions rows;
  rows.rows = true;
  const Tensor ids = Tensor::Of<int64_t>({1}, {3});
  for (const std::string owner : {"owner", "trainer"}) {
    const RRef table = Must(trainer_->GetOrCreate(owner, "table", Full({4, 256}, 2), rows));
    const absl::Status unknown = trainer_->LookUpRows({{table, ids}}, On("emu:7")).status();
    EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument) << unknown;
    EXPECT_THAT(std::string(unknown.message()), HasSubstr("cpu, emu:0, emu:1"));
    const auto taken = TakeAll(*devices_[1]);
    const absl::Status full = trainer_->LookUpRows({{table, ids}}, On("emu:1")).status();
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
    EXPECT_THAT(std::string(full.message()),
                AllOf(HasSubstr("emu:1"), HasSubstr(std::to_string(kBytes))));
    EXPECT_TRUE(trainer_->LookUpRows({{table, ids}}, On("emu:0")).ok());
  }
}

// One optimizer for parameters on an owner with a device and on one without, whose gradients come
// through calls to both.
TEST_P(CallDevicesTest, AMixedJobStepsBothOwners) {
  TestOwner cpu_owner("cpu_owner");
  WorkerOptions options;
  options.name = "mixed";
  options.owners = {host_.owner().address(), cpu_owner.address()};
  auto trainer = Must(Worker::Start(std::move(options)));
  const auto make = [&](const std::string& owner, const std::string& device) {
    CreateOptions creation;
    creation.requires_grad = true;
    creation.device = device;
    return Must(trainer->GetOrCreate(owner, "m", Full({4}, 2), creation));
  };
  const RRef there = make("owner", "emu:0"), here = make("cpu_owner", "cpu");
  auto optimizer = Must(DistributedOptimizer::Create(*trainer, "mixed", Adam{0.1}, {there, here}));
  const Function relu = Function::Operator("relu", 1);
  for (int i = 0; i < 3; ++i) {
    Context context = Must(trainer->NewContext());
    CallOptions recorded;
    recorded.context = &context;
    const Values a = Must(trainer->RpcSync("owner", relu, {there}, recorded));
    const Values b = Must(trainer->RpcSync("cpu_owner", relu, {here}, recorded));
    // The parameters are also used directly.
    const std::vector<Variable> pulled = Must(trainer->ToHere({there, here}, context));
    const Variable loss =
        Sum(*a[0].As<Variable>() * *b[0].As<Variable>()) + Sum(pulled[0] * pulled[1]);
    const absl::Status back = context.Backward({loss});
    ASSERT_TRUE(back.ok()) << back;
    const absl::Status stepped = optimizer->Step(context);
    ASSERT_TRUE(stepped.ok()) << stepped;
  }
  const std::vector<float> on_device = Read(*trainer, there), on_cpu = Read(*trainer, here);
  EXPECT_THAT(on_cpu, Each(::testing::FloatNear(1.7f, 0.01f)));
  EXPECT_THAT(on_device, ::testing::Pointwise(::testing::FloatNear(1e-5f), on_cpu));
}

}  // namespace
}  // namespace psd
