#include "core/device/emulated/emulated_device.h"

#include <atomic>
#include <cmath>
#include <future>
#include <thread>

#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/base/tsan.h"
#include "gmock/gmock.h"
#include "tests/core/device/emulated_kernels.h"

namespace psd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kCount = 10;

TEST(EmulatedDeviceTest, CopiesInWithinAndOut) {
  const auto device = NewDevice();
  EXPECT_EQ(device->name(), "emu:0");
  const std::vector<float> floats = {1, 2, 3};
  const size_t bytes = sizeof(float) * floats.size();
  const auto first = device->memory().Allocate(bytes);
  const auto second = device->memory().Allocate(bytes);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->place().device(), device.get());
  EXPECT_FALSE((*first)->place().host_readable());
  ASSERT_TRUE(
      device->CopyIn((*first)->data(), reinterpret_cast<const std::byte*>(floats.data()), bytes)
          .ok());
  ASSERT_TRUE(device->CopyWithin((*second)->data(), (*first)->data(), bytes).ok());
  std::vector<float> out(3);
  ASSERT_TRUE(
      device->CopyOut(reinterpret_cast<std::byte*>(out.data()), (*second)->data(), bytes).ok());
  EXPECT_EQ(out, floats);
}

TEST(EmulatedDeviceTest, MemoryThatNobodyHasWrittenReadsAsNan) {
  const auto device = NewDevice();
  const auto block = NewFloats(device->default_stream(), 1);
  EXPECT_TRUE(std::isnan(Read(device->default_stream(), *block)[0]));
}

#ifndef PSD_TSAN  // which rightly reports the host's first look at the pinned memory
TEST(EmulatedDeviceTest, NothingRunsUntilSomebodyWaits) {
  const auto device = DeviceWithSeed(0);
  EmulatedStream& stream = device->default_stream();
  const auto block = NewFloats(stream, kCount);
  ASSERT_TRUE(Fill(stream, *block, 1).ok());
  const auto pinned = StartReading(stream, *block);
  const auto event = RecordOn(stream);
  EXPECT_EQ(Floats(*pinned), Equal(kCount, 0));
  EXPECT_TRUE(event->Wait().ok());
  EXPECT_EQ(Floats(*pinned), Equal(kCount, 1));
}
#endif

TEST(EmulatedDeviceTest, AnEventPassesForAThreadThatAsksAgainAndAgain) {
  const auto device = NewDevice();
  ASSERT_TRUE(Fill(device->default_stream(), *NewFloats(device->default_stream(), 1), 1).ok());
  const auto event = RecordOn(device->default_stream());
  EXPECT_FALSE(event->passed());
  while (!event->passed()) std::this_thread::yield();
  EXPECT_TRUE(event->Wait().ok());
}

TEST(EmulatedDeviceTest, CompletionsAreCalledAfterTheWork) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  const auto block = NewFloats(stream, kCount);
  ASSERT_TRUE(Fill(stream, *block, 3).ok());
  const auto pinned = StartReading(stream, *block);
  std::promise<std::vector<float>> seen;
  RecordOn(stream)->OnPassed([&](absl::Status result) {
    EXPECT_TRUE(result.ok()) << result;
    seen.set_value(Floats(*pinned));
  });
  EXPECT_EQ(seen.get_future().get(), Equal(kCount, 3));
}

TEST(EmulatedDeviceTest, ACompletionMayAddWorkAndFreeBlocks) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  auto block = NewFloats(stream, kCount);
  const auto other = NewFloats(stream, kCount);
  std::promise<void> called;
  RecordOn(stream)->OnPassed([&](const absl::Status& result) {
    EXPECT_TRUE(result.ok()) << result;
    EXPECT_TRUE(Fill(stream, *other, 8).ok());
    block.reset();
    called.set_value();
  });
  called.get_future().wait();
  EXPECT_EQ(Read(stream, *other), Equal(kCount, 8));
  EXPECT_EQ(device->used_bytes(), kCount * sizeof(float));
}

TEST(EmulatedDeviceTest, AnEventMayOutliveItsDevice) {
  std::shared_ptr<Event> event;
  {
    const auto device = NewDevice();
    event = RecordOn(device->default_stream());
  }
  EXPECT_TRUE(event->passed());
  EXPECT_TRUE(event->Wait().ok());
  std::promise<absl::Status> called;
  event->OnPassed([&](absl::Status result) { called.set_value(std::move(result)); });
  event.reset();
  EXPECT_TRUE(called.get_future().get().ok());
}

std::atomic<int> told{0};
struct Tell {
  void operator()(size_t /*i*/, int number) const { told = number; }
};

// The event keeps the streams running after the end of the device.
TEST(EmulatedDeviceTest, ADeviceEndsBehindTheWorkThatItsCompletionsAdd) {
  std::shared_ptr<Event> event;
  {
    const auto device = NewDevice();
    EmulatedStream& stream = device->default_stream();
    event = RecordOn(stream);
    event->OnPassed([&stream, &scheduler = device->scheduler()](const absl::Status& result) {
      EXPECT_TRUE(result.ok()) << result;
      while (scheduler.waiting() == 0) std::this_thread::yield();  // for the device's destructor
      EXPECT_TRUE(stream.Launch("Tell", 1, Tell(), 1).ok());
      RecordOn(stream)->OnPassed([&stream](const absl::Status& /*result*/) {
        EXPECT_TRUE(stream.Launch("Tell", 1, Tell(), 2).ok());
      });
    });
  }
  EXPECT_EQ(told, 2);
}

TEST(EmulatedDeviceTest, ACompletionAtTheEndOfItsDeviceIsRefusedMemory) {
  auto device = NewDevice();
  const std::weak_ptr<EmulatedDevice> dropped = device;
  const auto event = RecordOn(device->default_stream());
  absl::Status refused;
  event->OnPassed([&, &stream = device->default_stream()](const absl::Status& /*result*/) {
    while (!dropped.expired()) std::this_thread::yield();
    refused = stream.Allocate(4).status();
  });
  device.reset();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("emu:0 allocates nothing more"));
}

TEST(EmulatedDeviceTest, MoreWorkThanTheQueueHoldsWaitsForItsTurn) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  const auto sum = NewFloats(stream, 1);
  const auto one = NewFloats(stream, 1);
  ASSERT_TRUE(Fill(stream, *sum, 0).ok());
  ASSERT_TRUE(Fill(stream, *one, 1).ok());
  for (int i = 0; i < 1500; ++i)
    ASSERT_TRUE(
        stream.Launch("AddTo", 1, AddTo(), DeviceArray<float>(*sum), DeviceArray<const float>(*one))
            .ok());
  EXPECT_THAT(Read(stream, *sum), ElementsAre(1500));
}

// ---- kernels

struct AddAll {
  void operator()(size_t i, const DeviceArray<float>& to,
                  const std::vector<DeviceArray<const float>>& from) const {
    to[i] = 0;
    for (const DeviceArray<const float>& each : from) to[i] += each[i];
  }
};

struct Step {
  DeviceArray<float> parameter;
  DeviceArray<const float> gradient;
  float rate = 0;

  template <typename Visit>
  void VisitArrays(Visit& visit) {
    emulated::VisitArrays(parameter, visit);
    emulated::VisitArrays(gradient, visit);
  }
};
// Applies all steps, one after the other.
struct StepAll {
  void operator()(size_t i, const std::vector<Step>& steps) const {
    for (const Step& step : steps) step.parameter[i] -= step.rate * step.gradient[i];
  }
};

TEST(EmulatedDeviceTest, ListsOfArraysAndStructsAreTranslated) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  const auto a = NewFloats(stream, kCount), b = NewFloats(stream, kCount),
             sum = NewFloats(stream, kCount);
  ASSERT_TRUE(Fill(stream, *a, 1).ok());
  ASSERT_TRUE(Fill(stream, *b, 2).ok());
  const std::vector<DeviceArray<const float>> both = {DeviceArray<const float>(*a),
                                                      DeviceArray<const float>(*b)};
  ASSERT_TRUE(stream.Launch("AddAll", kCount, AddAll(), DeviceArray<float>(*sum), both).ok());
  EXPECT_EQ(Read(stream, *sum), Equal(kCount, 3));
  const std::vector<Step> steps = {{DeviceArray<float>(*a), DeviceArray<const float>(*sum), 0.5f},
                                   {DeviceArray<float>(*b), DeviceArray<const float>(*sum), 1.0f}};
  ASSERT_TRUE(stream.Launch("StepAll", kCount, StepAll(), steps).ok());
  EXPECT_EQ(Read(stream, *a), Equal(kCount, -0.5f));
  EXPECT_EQ(Read(stream, *b), Equal(kCount, -1));
}

inline constexpr KernelName<void(Device*, float*, size_t, float)> kFillKernel{"FillKernel", 0};

void FillKernel(Device* device, float* to, size_t count, float value) {
  static_cast<void>(static_cast<EmulatedDevice*>(device)->default_stream().Launch(
      "FillKernel", count, FillWith(), DeviceArray<float>(to, count), value));
}

TEST(EmulatedDeviceTest, KernelsAreFoundByName) {
  EmulatedDeviceOptions options;
  options.kernels.Add(kFillKernel, FillKernel);
  const auto device = NewDevice(options);
  const auto block = NewFloats(device->default_stream(), kCount);
  const auto kernel = KernelOf(kFillKernel, *device);
  ASSERT_TRUE(kernel.ok());
  (*kernel)(device.get(), reinterpret_cast<float*>(block->data()), kCount, 5);
  EXPECT_EQ(Read(device->default_stream(), *block), Equal(kCount, 5));
}

TEST(EmulatedDeviceTest, AddressesOfTheHostAreRefused) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  std::vector<float> host(kCount);
  const absl::Status launched =
      stream.Launch("Fill", kCount, FillWith(), DeviceArray<float>(host.data(), kCount), 1.0f);
  EXPECT_EQ(launched.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(launched.message(),
              HasSubstr("Fill on stream 0 of emu:0 was given 40 bytes that are not in the memory"));
  const auto block = NewFloats(stream, kCount);
  const absl::Status copied =
      stream.CopyIn(block->data(), reinterpret_cast<const std::byte*>(host.data()), 40);
  EXPECT_EQ(copied.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(copied.message(), HasSubstr("the pinned memory of emu:0"));
}

// ---- memory

TEST(EmulatedDeviceTest, ABlockMayBeFreedWhileWorkUsesIt) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto device = DeviceWithSeed(seed);
    EmulatedStream& stream = device->default_stream();
    auto block = NewFloats(stream, kCount);
    ASSERT_TRUE(Fill(stream, *block, 7).ok());
    const auto pinned = StartReading(stream, *block);
    block.reset();
    EXPECT_EQ(device->used_bytes(), 0u);
    ASSERT_TRUE(device->Synchronize().ok());
    EXPECT_EQ(Floats(*pinned), Equal(kCount, 7)) << "seed " << seed;
  }
}

// Two streams share an arena that has room for two blocks only.
TEST(EmulatedDeviceTest, MemoryIsUsedAgainAfterTheWorkOfAllStreamsThatUseIt) {
  constexpr size_t kFloats = 12'000;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    EmulatedDeviceOptions options;
    options.seed = seed;
    options.budget_bytes = kFloats * sizeof(float);
    options.most_blocks = 2;
    const auto device = NewDevice(options);
    EmulatedStream& one = device->default_stream();
    EmulatedStream& two = AddStreamTo(*device);
    std::vector<std::shared_ptr<Block>> read;
    for (int i = 0; i < 10; ++i) {
      EmulatedStream& home = i % 3 == 0 ? two : one;
      EmulatedStream& other = i % 3 == 0 ? one : two;
      const auto block = NewFloats(home, kFloats);
      ASSERT_TRUE(Fill(home, *block, static_cast<float>(i)).ok());
      ASSERT_TRUE(other.WaitFor(RecordOn(home)).ok());
      ASSERT_TRUE(other.AlsoUses(*block).ok());
      read.push_back(StartReading(other, *block));
    }
    ASSERT_TRUE(device->Synchronize().ok());
    for (int i = 0; i < 10; ++i)
      EXPECT_EQ(Floats(*read[i]), Equal(kFloats, static_cast<float>(i))) << "seed " << seed;
  }
}

TEST(EmulatedDeviceTest, ABlockOfAnotherDeviceIsRefused) {
  const auto devices = EmulatedDevice::Create(2);
  ASSERT_TRUE(devices.ok());
  const auto block = NewFloats((*devices)[1]->default_stream(), 1);
  const absl::Status used = (*devices)[0]->default_stream().AlsoUses(*block);
  EXPECT_EQ(used.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(used.message(), HasSubstr("a stream of emu:0 cannot use a block of emu:1"));
}

TEST(EmulatedDeviceTest, BlocksOfNoBytesHaveAddressesOfTheirOwn) {
  const auto device = NewDevice();
  const auto first = NewFloats(device->default_stream(), 0);
  const auto second = NewFloats(device->default_stream(), 0);
  EXPECT_NE(first->data(), second->data());
  EXPECT_TRUE(device->Synchronize().ok());
}

TEST(EmulatedDeviceTest, CopiesOfNoBytesNeedNoAddresses) {
  const auto device = NewDevice();
  EXPECT_TRUE(device->CopyIn(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device->CopyWithin(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device->CopyOut(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device->default_stream().CopyIn(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device->default_stream().CopyOut(nullptr, nullptr, 0).ok());
}

TEST(EmulatedDeviceTest, ErrorsOfMemoryNameNeedBudgetAndUse) {
  EmulatedDeviceOptions options;
  options.budget_bytes = 1000;
  options.pinned_bytes = 100;
  const auto device = NewDevice(options);
  const auto block = device->memory().Allocate(800);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(device->budget_bytes(), 1000u);
  EXPECT_EQ(device->used_bytes(), 800u);
  const auto more = device->default_stream().Allocate(300);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(more.status().message(),
              HasSubstr("emu:0 has no room for 300 bytes more: the budget is 1000 bytes, of which "
                        "800 are in use"));
  const auto pinned = device->pinned_memory().Allocate(60);
  const auto more_pinned = device->pinned_memory().Allocate(50);
  EXPECT_EQ(more_pinned.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(more_pinned.status().message(),
              HasSubstr("pinned memory of emu:0 has no room for 50 bytes more: the budget is 100 "
                        "bytes, of which 60 are in use"));
}

TEST(EmulatedDeviceTest, OptionsBeyondReasonAreRefused) {
  EmulatedDeviceOptions vast;
  vast.budget_bytes = size_t{1} << 63;
  EmulatedDeviceOptions crowded;
  crowded.most_blocks = size_t{1} << 60;
  for (const absl::Status& refused :
       {EmulatedDevice::Create(1, vast).status(), EmulatedDevice::Create(1, crowded).status(),
        EmulatedDevice::Create(0).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("ask for at least 1 device"));
  }
}

TEST(EmulatedDeviceTest, BlocksAndStreamsAreBounded) {
  EmulatedDeviceOptions options;
  options.most_blocks = 1;
  const auto device = NewDevice(options);
  const auto block = device->memory().Allocate(1);
  EXPECT_THAT(device->memory().Allocate(1).status().message(),
              HasSubstr("emu:0 has 1 blocks already"));
  for (size_t i = 1; i < kMaxStreams; ++i) AddStreamTo(*device);
  const auto more = device->AddStream();
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(more.status().message(), HasSubstr("emu:0 has 32 streams already"));
}

// ---- several devices

TEST(EmulatedDeviceTest, DevicesWaitForEachOtherAndCopyDirectly) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    EmulatedDeviceOptions options;
    options.seed = seed;
    const auto devices = EmulatedDevice::Create(2, options);
    ASSERT_TRUE(devices.ok());
    EmulatedStream& from = (*devices)[0]->default_stream();
    EmulatedStream& to = (*devices)[1]->default_stream();
    const auto source = NewFloats(from, kCount), target = NewFloats(to, kCount);
    ASSERT_TRUE(Fill(from, *source, 4).ok());
    ASSERT_TRUE(to.WaitFor(RecordOn(from)).ok());
    ASSERT_TRUE(to.CopyFrom(target->data(), from.device(), source->data(), source->size()).ok());
    EXPECT_EQ(Read(to, *target), Equal(kCount, 4)) << "seed " << seed;
  }
}

TEST(EmulatedDeviceTest, DevicesThatWereCreatedApartCannotWaitForEachOther) {
  const auto one = NewDevice(), two = NewDevice();
  EXPECT_EQ(two->default_stream().WaitFor(RecordOn(one->default_stream())).code(),
            absl::StatusCode::kInvalidArgument);
  const auto a = NewFloats(one->default_stream(), 1), b = NewFloats(two->default_stream(), 1);
  EXPECT_EQ(two->default_stream().CopyFrom(b->data(), *one, a->data(), 4).code(),
            absl::StatusCode::kUnimplemented);
}

TEST(EmulatedDeviceTest, CopyBytesBetweenDevicesIsDoneWhenItReturnsAndUsesNoHost) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    EmulatedDeviceOptions options;
    options.seed = seed;
    const auto devices = EmulatedDevice::Create(2, options);
    ASSERT_TRUE(devices.ok());
    EmulatedDevice &from = *(*devices)[0], &to = *(*devices)[1];
    const auto target = NewFloats(to.default_stream(), kCount);
    {
      const auto source = NewFloats(from.default_stream(), kCount);
      ASSERT_TRUE(Fill(from.default_stream(), *source, 4).ok());
      from.RefuseOperation(1);
      ASSERT_TRUE(CopyBytes(&to, target->data(), &from, source->data(), source->size()).ok());
    }
    // The memory of the source is used again.
    const auto other = NewFloats(from.default_stream(), kCount);
    EXPECT_FALSE(Fill(from.default_stream(), *other, 5).ok()) << "the copy was one to the host";
    ASSERT_TRUE(Fill(from.default_stream(), *other, 5).ok());
    ASSERT_TRUE(from.Synchronize().ok());
    EXPECT_EQ(Read(to.default_stream(), *target), Equal(kCount, 4)) << "seed " << seed;
  }
}

TEST(EmulatedDeviceTest, CopyBytesBetweenDevicesThatWereCreatedApartGoesThroughTheHost) {
  const auto from = DeviceWithSeed(1), to = DeviceWithSeed(2);
  const auto source = NewFloats(from->default_stream(), kCount);
  const auto target = NewFloats(to->default_stream(), kCount);
  ASSERT_TRUE(Fill(from->default_stream(), *source, 4).ok());
  ASSERT_TRUE(CopyBytes(to.get(), target->data(), from.get(), source->data(), source->size()).ok());
  EXPECT_EQ(Read(to->default_stream(), *target), Equal(kCount, 4));
}

TEST(EmulatedDeviceTest, CopyBytesSaysThatTheDeviceOfTheSourceIsLost) {
  const auto devices = EmulatedDevice::Create(2, {});
  ASSERT_TRUE(devices.ok());
  EmulatedDevice &from = *(*devices)[0], &to = *(*devices)[1];
  const auto source = NewFloats(from.default_stream(), kCount);
  const auto target = NewFloats(to.default_stream(), kCount);
  from.FailOperation(1);
  ASSERT_TRUE(Fill(from.default_stream(), *source, 4).ok());
  const absl::Status copied = CopyBytes(&to, target->data(), &from, source->data(), source->size());
  EXPECT_EQ(copied.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(copied.message()), HasSubstr(from.name()));
  EXPECT_TRUE(to.health().ok());
}

// The source is freed in the order of its own device, which knows nothing of the copy.
TEST(EmulatedDeviceTest, CopyBytesWaitsForItsCopyEvenIfThereIsNoEvent) {
  const auto devices = EmulatedDevice::Create(2, {});
  ASSERT_TRUE(devices.ok());
  EmulatedDevice &from = *(*devices)[0], &to = *(*devices)[1];
  const auto target = NewFloats(to.default_stream(), kCount);
  {
    const auto source = NewFloats(from.default_stream(), kCount);
    ASSERT_TRUE(Fill(from.default_stream(), *source, 4).ok());
    to.RefuseEvent(1);
    EXPECT_TRUE(CopyBytes(&to, target->data(), &from, source->data(), source->size()).ok());
  }
  ASSERT_TRUE(from.Synchronize().ok());
  EXPECT_EQ(Read(to.default_stream(), *target), Equal(kCount, 4));
}

}  // namespace
}  // namespace psd::testing
