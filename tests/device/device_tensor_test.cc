// Tensors and operators on an emulated device. The tests run with several seeds, which decide in
// which order the device works.

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/device.h"
#include "core/base/shared_segment.h"
#include "core/base/stream.h"
#include "core/device/emulated/emulated_device.h"
#include "core/tensor/copy_to.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/gather.h"
#include "core/tensor/ops/loss.h"
#include "core/tensor/ops/matmul.h"
#include "core/tensor/ops/reduce.h"
#include "core/tensor/ops/shape_ops.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/tensor/compare.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

class DeviceTensorTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  Tensor There(const Tensor& x) { return *x.Clone(&device_->memory()); }
  static Tensor Row(std::vector<float> values) {
    const Shape shape{static_cast<int64_t>(values.size())};
    return Tensor::Of<float>(shape, std::move(values));
  }

  // The first one is device_; the other one is for mixing devices.
  const std::vector<std::shared_ptr<EmulatedDevice>> devices_ =
      testing::NewTestDevices(2, GetParam());
  const std::shared_ptr<EmulatedDevice> device_ = devices_[0];
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceTensorTest, ::testing::Values(0, 1));

void ExpectHas(const absl::Status& status, absl::StatusCode code,
               const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts)
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status;
}

TEST_P(DeviceTensorTest, IsCopiedToAnyPlaceUnlessItIsThereAndContiguous) {
  const Tensor here = Row({1, 2, 3, 4, 5, 6});
  const Tensor there = *CopyTo(device_.get(), here);
  EXPECT_EQ(there.device(), device_.get());
  EXPECT_EQ(CopyTo(device_.get(), there)->address(), there.address());
  EXPECT_EQ(CopyTo(nullptr, here)->address(), here.address());
  const Tensor turned = *ops::Transpose(*ops::Reshape(there, {2, 3}), 0, 1);
  for (Device* const place : std::vector<Device*>{nullptr, device_.get(), devices_[1].get()}) {
    const Tensor copy = *CopyTo(place, turned);
    EXPECT_EQ(copy.device(), place);
    EXPECT_TRUE(copy.IsContiguous());
    const Tensor back = *copy.ToHost();
    EXPECT_EQ(std::vector<float>(back.data<float>(), back.data<float>() + 6),
              (std::vector<float>{1, 4, 2, 5, 3, 6}));
  }
}

TEST_P(DeviceTensorTest, KeepsItsPlaceThroughViewsBuffersAndBack) {
  const Tensor there = There(*ops::Reshape(Row({1, 2, 3, 4, 5, 6}), {2, 3}));
  EXPECT_FALSE(there.OnHost());
  EXPECT_EQ(there.device(), device_.get());
  const Tensor view = *ops::Slice(there, 1, 1, 3);
  EXPECT_EQ(view.device(), device_.get());
  const Buffer buffer = there.AsBuffer().Slice(12, 12);
  EXPECT_EQ(buffer.place().device(), device_.get());
  const Tensor again = *Tensor::FromBuffer(Shape{3}, DType::kF32, buffer);
  EXPECT_EQ(again.device(), device_.get());
  EXPECT_TRUE(ops::Equal(*again.ToHost(), Row({4, 5, 6})));
  EXPECT_TRUE(ops::Equal(*view.ToHost(), *ops::Slice(*there.ToHost(), 1, 1, 3)));
}

TEST_P(DeviceTensorTest, MemoryGoesBackWithTheLastHandle) {
  EXPECT_EQ(device_->used_bytes(), 0u);
  {
    const Tensor there = There(Row({1, 2, 3}));
    const Tensor view = *ops::Transpose(*ops::Reshape(there, {3, 1}), 0, 1);
    EXPECT_GT(device_->used_bytes(), 0u);
  }
  EXPECT_EQ(device_->used_bytes(), 0u);
}

TEST_P(DeviceTensorTest, ElementwiseOperatorsRunThere) {
  const Tensor a = *ops::Reshape(Row({1, -2, 3, -4, 5, -6}), {2, 3});
  const Tensor b = Row({10, 20, 30});
  const size_t before = device_->kernels_launched();
  const std::vector<std::pair<absl::StatusOr<Tensor>, absl::StatusOr<Tensor>>> pairs = {
      {ops::Add(There(a), There(a)), ops::Add(a, a)},
      {ops::Add(There(a), There(b)), ops::Add(a, b)},
      {ops::Mul(There(b), There(a)), ops::Mul(b, a)},
      {ops::Mul(There(a), 3), ops::Mul(a, 3)},
      {ops::Add(*ops::Transpose(There(a), 0, 1), There(*Tensor::Full({3, 1}, DType::kF32, 7))),
       ops::Add(*ops::Transpose(a, 0, 1), *Tensor::Full({3, 1}, DType::kF32, 7))},
      {ops::Neg(There(a)), ops::Neg(a)},
      {ops::Relu(*ops::Transpose(There(a), 0, 1)), ops::Relu(*ops::Transpose(a, 0, 1))},
      {ops::ReluGradient(There(a), There(a)), ops::ReluGradient(a, a)},
      {ops::Cast(There(a), DType::kF64), ops::Cast(a, DType::kF64)},
      {ops::Sub(There(a), There(b)), ops::Sub(a, b)},
      {ops::Div(There(a), There(b)), ops::Div(a, b)},
      {ops::Sqrt(There(b)), ops::Sqrt(b)},
  };
  EXPECT_GT(device_->kernels_launched(), before);
  for (size_t i = 0; i < pairs.size(); ++i) {
    ASSERT_TRUE(pairs[i].first.ok()) << i << ": " << pairs[i].first.status();
    EXPECT_EQ(pairs[i].first->device(), device_.get()) << i;
    EXPECT_TRUE(ops::Equal(*pairs[i].first->ToHost(), *pairs[i].second)) << i;
  }
}

TEST_P(DeviceTensorTest, ReductionsAndRowsRunThere) {
  const Tensor a = *ops::Reshape(Row({1, -2, 3, -4, 5, -6}), {2, 3});
  const Tensor ids = Tensor::Of<int64_t>({3}, {1, 0, 1});
  const std::vector<std::pair<absl::StatusOr<Tensor>, absl::StatusOr<Tensor>>> pairs = {
      {ops::Sum(There(a)), ops::Sum(a)},
      {ops::Sum(There(a), 0), ops::Sum(a, 0)},
      {ops::Mean(There(a)), ops::Mean(a)},
      {ops::Max(There(a), 0), ops::Max(a, 0)},
      {ops::ArgMax(There(a), 1), ops::ArgMax(a, 1)},
      {ops::Sum(There(a), 1, true), ops::Sum(a, 1, true)},
      {ops::SumTo(There(a), Shape{3}), ops::SumTo(a, Shape{3})},
      {ops::GatherRows(There(a), ids), ops::GatherRows(a, ids)},
      {ops::GatherRows(There(a), There(ids)), ops::GatherRows(a, ids)},
      {ops::Concat({There(a), There(a)}, 1), ops::Concat({a, a}, 1)},
  };
  for (size_t i = 0; i < pairs.size(); ++i) {
    ASSERT_TRUE(pairs[i].first.ok()) << i << ": " << pairs[i].first.status();
    EXPECT_EQ(pairs[i].first->device(), device_.get()) << i;
    EXPECT_TRUE(ops::Equal(*pairs[i].first->ToHost(), *pairs[i].second)) << i;
  }
}

TEST_P(DeviceTensorTest, LossesRunThere) {
  const Tensor x = *Tensor::Full({2, 4}, DType::kF32, 3);
  const Tensor labels = Tensor::Of<int64_t>({2}, {3, 1});
  const Tensor soft = *ops::Softmax(There(x));
  EXPECT_EQ(soft.device(), device_.get());
  EXPECT_TRUE(ops::Equal(*soft.ToHost(), *Tensor::Full({2, 4}, DType::kF32, 0.25)));
  // The labels may be on the host or beside the logits.
  for (const Tensor& classes : {labels, There(labels)}) {
    Tensor log;
    const Tensor loss = *ops::CrossEntropy(There(x), classes, &log);
    EXPECT_EQ(loss.device(), device_.get());
    EXPECT_NEAR(loss.ToHost()->data<float>()[0], std::log(4.0), 1e-6);
    const Tensor one = There(*Tensor::Full({}, DType::kF32, 1));
    const Tensor gradient = *ops::CrossEntropyGradient(log, classes, one)->ToHost();
    EXPECT_NEAR(gradient.data<float>()[0], 0.125, 1e-6);
    EXPECT_NEAR(gradient.data<float>()[5], -0.375, 1e-6);
  }
  const Tensor wrong = Tensor::Of<int64_t>({2}, {0, 4});
  ExpectHas(ops::CrossEntropy(There(x), wrong).status(), absl::StatusCode::kInvalidArgument,
            {"label 4 of row 1"});
}

// With seed 0, a stream runs nothing that nobody waits for.
TEST_P(DeviceTensorTest, OperatorsRunOnTheStreamOfTheThread) {
  Stream& other = **device_->AddStream();
  const Tensor a = There(Row({1, 2, 3}));
  const Tensor on_default = *ops::Neg(a);
  const std::shared_ptr<Event> behind = *device_->default_stream().Record();
  ASSERT_TRUE(other.AlsoUses(*a.block()).ok());
  {
    const StreamScope scope(other);
    EXPECT_EQ(CurrentStream(device_.get()), &other);
    EXPECT_EQ(CurrentStream(devices_[1].get()), &devices_[1]->default_stream());
    EXPECT_EQ(CurrentStream(nullptr), nullptr);
    const Tensor sum = *ops::Add(*ops::Mul(a, 2), *a.Clone());
    EXPECT_TRUE(ops::Equal(*sum.ToHost(), Row({3, 6, 9})));
  }
  if (GetParam() == 0) {
    EXPECT_FALSE(behind->passed());
  }
  EXPECT_EQ(CurrentStream(device_.get()), &device_->default_stream());
  EXPECT_TRUE(ops::Equal(*on_default.ToHost(), Row({-1, -2, -3})));
}

TEST(DeviceWithoutKernelsTest, AnOperatorWithoutAKernelThereNamesBoth) {
  const std::shared_ptr<EmulatedDevice> device = EmulatedDevice::Create(1, {}).value()[0];
  const Tensor a = *Tensor::Of<float>({2, 2}, {1, 2, 3, 4}).Clone(&device->memory());
  const std::vector<std::pair<std::string, absl::Status>> refused = {
      {"Neg", ops::Neg(a).status()},
      {"Matmul", ops::Matmul(a, a).status()},
      {"Matmul", ops::Linear(a, a, Tensor()).status()},
  };
  for (const auto& [name, status] : refused)
    ExpectHas(status, absl::StatusCode::kUnimplemented, {name, "emu:0"});
}

// Unlike other kernels, products return errors.
TEST_P(DeviceTensorTest, AProductThatIsRefusedLosesNoDevice) {
  const Tensor a = There(Tensor::Of<float>({2, 2}, {1, 2, 3, 4}));
  device_->RefuseOperation(1);
  ExpectHas(ops::Matmul(a, a).status(), absl::StatusCode::kInternal, {"emu:0", "Matmul"});
  EXPECT_TRUE(device_->health().ok());
  EXPECT_TRUE(ops::Equal(*ops::Matmul(a, a)->ToHost(), Tensor::Of<float>({2, 2}, {7, 10, 15, 22})));
}

TEST_P(DeviceTensorTest, MixingDevicesIsAnErrorThatNamesBoth) {
  const std::shared_ptr<EmulatedDevice>& other = devices_[1];
  const Tensor here = Row({1, 2});
  const Tensor there = There(here);
  const Tensor far = *here.Clone(&other->memory());
  const auto code = absl::StatusCode::kInvalidArgument;
  ExpectHas(ops::Add(here, there).status(), code, {"Add", "cpu", "emu:0"});
  ExpectHas(ops::Mul(there, far).status(), code, {"Mul", "emu:0", "emu:1"});
  ExpectHas(ops::Concat({there, here}, 0).status(), code, {"Concat", "cpu", "emu:0"});
  ExpectHas(ops::Matmul(here, there).status(), code, {"Matmul", "cpu", "emu:0"});
  EXPECT_TRUE(ops::Equal(*there.Clone(&other->memory()), far));  // an explicit copy
}

TEST_P(DeviceTensorTest, AFullDeviceSaysSo) {
  ExpectHas(Tensor::Zeros({1 << 24}, DType::kF32, &device_->memory()).status(),
            absl::StatusCode::kResourceExhausted, {"emu:0", "67108864"});
}

TEST_P(DeviceTensorTest, ALostDeviceSaysSo) {
  const Tensor there = There(Row({1, 2}));
  device_->Lose("it fell off the bus");
  ExpectHas(there.ToHost().status(), absl::StatusCode::kUnavailable, {"emu:0"});
}

TEST(DeviceTensorDeathTest, TheHostCannotReadADevicesElements) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto device = testing::NewTestDevice(0);
  const Tensor there = *Tensor::Zeros({4}, DType::kF32, &device->memory());
  EXPECT_DEATH(there.data<float>(), "the host reads a tensor on a device");
  EXPECT_DEATH(
      {
        volatile auto byte = *there.address();
        (void)byte;
      },
      "emu:0: the host followed an address of the device's memory");
}

TEST(SegmentTest, ABufferSaysWhereItLiesInItsSegment) {
  class SegmentBlock : public Block {
   public:
    SegmentBlock(const SharedSegment& segment, size_t offset)
        : Block(segment.data() + offset, 256, segment.place(), offset) {}
  };
  const auto segment = *SharedSegment::Create(8192);
  const auto block = std::make_shared<SegmentBlock>(*segment, 4096);
  const Tensor tensor = *Tensor::FromBuffer({64}, DType::kF32, Buffer(block));
  const Buffer part = ops::Slice(tensor, 0, 16, 32)->AsBuffer();
  EXPECT_EQ(part.place().kind(), MemoryPlace::Kind::kSegment);
  EXPECT_EQ(part.place().segment(), segment.get());
  EXPECT_EQ(part.segment_offset(), 4096u + 64);
  EXPECT_TRUE(tensor.OnHost());
  EXPECT_EQ(tensor.data<float>()[0], 0);
}

}  // namespace
}  // namespace psd
