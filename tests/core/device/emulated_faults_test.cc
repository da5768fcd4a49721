// Tests of faults on request, and of the mistakes that the emulated device finds.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <thread>

#include "core/device/emulated/emulated_device.h"
#include "gmock/gmock.h"
#include "tests/core/device/emulated_kernels.h"

namespace psd::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCount = 100;  // 400 bytes; the next multiple of the alignment is 448

TEST(EmulatedFaultsTest, AnAllocationFailsOnRequestAndTheNextOneDoesNot) {
  const auto device = NewDevice();
  device->FailAllocation(2);
  EXPECT_TRUE(device->memory().Allocate(8).ok());
  const auto refused = device->memory().Allocate(8);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("emu:0 has no room for 8 bytes more"));
  EXPECT_TRUE(device->memory().Allocate(8).ok());
}

TEST(EmulatedFaultsTest, ARefusedOperationChangesNothing) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  const auto block = NewFloats(stream, kCount);
  ASSERT_TRUE(Fill(stream, *block, 1).ok());
  device->RefuseOperation(1);
  const absl::Status refused = Fill(stream, *block, 2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(refused.message(), HasSubstr("emu:0 refused the operation Fill on stream 0"));
  EXPECT_EQ(Read(stream, *block), Equal(kCount, 1));
  EXPECT_TRUE(device->health().ok());
}

TEST(EmulatedFaultsTest, AnEventIsRefusedOnRequestAndTheNextOneIsNot) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  device->RefuseEvent(2);
  EXPECT_TRUE(stream.Record().ok());
  const absl::Status refused = stream.Record().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(refused.message(), HasSubstr("emu:0 refused to record an event on stream 0"));
  EXPECT_TRUE(RecordOn(stream)->Wait().ok());
  EXPECT_TRUE(device->health().ok());
}

template <typename T>
struct ReadAll {
  void operator()(size_t i, const DeviceArray<const T>& from, const DeviceArray<T>& to) const {
    to[i] = from[i];
  }
};

// A copy from an array that starts `skew` bytes behind the begin of a block.
template <typename T>
absl::Status CopyFromSkewed(EmulatedStream& stream, size_t skew) {
  const auto from = NewFloats(stream, kCount), to = NewFloats(stream, kCount);
  const auto* const first = reinterpret_cast<const T*>(from->data() + skew);
  return stream.Launch("Copy", 8, ReadAll<T>(), DeviceArray<const T>(first, 8),
                       DeviceArray<T>(reinterpret_cast<T*>(to->data()), 8));
}

TEST(EmulatedFaultsTest, AnArrayThatIsNotAlignedToItsElementsIsRefused) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  const size_t before = device->kernels_launched();
  const absl::Status refused = CopyFromSkewed<float>(stream, 6);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(),
              HasSubstr("Copy on stream 0 of emu:0 was given an array that starts 2 bytes behind a "
                        "multiple of 4"));
  EXPECT_FALSE(CopyFromSkewed<double>(stream, 4).ok());
  EXPECT_FALSE(CopyFromSkewed<uint16_t>(stream, 1).ok());
  EXPECT_EQ(device->kernels_launched(), before);
  EXPECT_TRUE(CopyFromSkewed<float>(stream, 4).ok());
  EXPECT_TRUE(CopyFromSkewed<double>(stream, 8).ok());
  EXPECT_TRUE(CopyFromSkewed<uint16_t>(stream, 2).ok());
  EXPECT_TRUE(CopyFromSkewed<uint8_t>(stream, 3).ok());
  EXPECT_TRUE(device->Synchronize().ok());
}

TEST(EmulatedFaultsTest, AFailingOperationLosesTheDevice) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  auto block = NewFloats(stream, kCount);
  ASSERT_TRUE(Fill(stream, *block, 1).ok());
  const auto before = RecordOn(stream);
  device->FailOperation(1);
  ASSERT_TRUE(Fill(stream, *block, 2).ok());
  const auto behind = RecordOn(stream);
  EXPECT_TRUE(before->Wait().ok());
  EXPECT_TRUE(device->health().ok());
  std::promise<absl::Status> completed;
  behind->OnPassed([&](absl::Status result) { completed.set_value(std::move(result)); });
  const absl::Status lost = completed.get_future().get();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(lost.message(),
              HasSubstr("emu:0 is lost: the operation Fill on stream 0 of emu:0 failed"));
  EXPECT_EQ(behind->Wait(), lost);
  EXPECT_EQ(Fill(stream, *block, 3), lost);
  EXPECT_EQ(stream.Allocate(1).status(), lost);
  EXPECT_EQ(device->Synchronize(), lost);
  block.reset();
  EXPECT_EQ(device->used_bytes(), 0u);
}

TEST(EmulatedFaultsTest, ALostDeviceDoesNoMoreWorkAndNobodyWaitsForEver) {
  const auto devices = EmulatedDevice::Create(2);
  ASSERT_TRUE(devices.ok());
  EmulatedDevice& lost = *(*devices)[0];
  EmulatedStream& other = (*devices)[1]->default_stream();
  const auto block = NewFloats(lost.default_stream(), kCount);
  const auto alive = NewFloats(other, kCount);
  ASSERT_TRUE(Fill(lost.default_stream(), *block, 1).ok());
  const auto pinned = StartReading(lost.default_stream(), *block);
  const auto event = RecordOn(lost.default_stream());
  ASSERT_TRUE(other.WaitFor(event).ok());
  ASSERT_TRUE(Fill(other, *alive, 2).ok());
  lost.Lose("it fell off the bus");
  EXPECT_THAT(event->Wait().message(), HasSubstr("emu:0 is lost: it fell off the bus"));
  EXPECT_EQ(Floats(*pinned), Equal(kCount, 0));
  EXPECT_EQ(Read(other, *alive), Equal(kCount, 2));
}

// ---- mistakes

class EmulatedFaultsDeathTest : public ::testing::Test {
 protected:
  EmulatedFaultsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Tells the host that it runs, and does not end.
std::atomic<bool> running{false};
struct RunOn {
  void operator()(size_t /*i*/, const DeviceArray<float>& /*array*/) const {
    running = true;
    while (running) std::this_thread::yield();
  }
};

TEST_F(EmulatedFaultsDeathTest, TheHostReadsDeviceMemory) {
  const auto device = NewDevice();
  const auto block = NewFloats(device->default_stream(), kCount);
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_DEATH(static_cast<void>(*reinterpret_cast<volatile float*>(block->data())),
               "emu:0: the host followed an address of the device's memory");
}

TEST_F(EmulatedFaultsDeathTest, TheHostWritesDeviceMemoryDuringAnOperation) {
  EXPECT_DEATH(
      {
        const auto device = NewDevice();
        EmulatedStream& stream = device->default_stream();
        const auto block = NewFloats(stream, kCount);
        static_cast<void>(stream.Launch("RunOn", 1, RunOn(), DeviceArray<float>(*block)));
        const auto event = RecordOn(stream);
        static_cast<void>(event->passed());
        while (!running) std::this_thread::yield();
        *reinterpret_cast<volatile float*>(block->data()) = 1;
      },
      "emu:0: the host followed an address of the device's memory");
}

struct FollowNumber {
  void operator()(size_t /*i*/, uintptr_t address) const {
    *reinterpret_cast<volatile float*>(address) = 1;
  }
};

TEST_F(EmulatedFaultsDeathTest, AnOperationFollowsAnAddressThatWasNotTranslated) {
  EXPECT_DEATH(
      {
        const auto device = NewDevice();
        EmulatedStream& stream = device->default_stream();
        const auto block = NewFloats(stream, kCount);
        const auto address = reinterpret_cast<uintptr_t>(block->data());
        static_cast<void>(stream.Launch("FollowNumber", 1, FollowNumber(), address));
        static_cast<void>(device->Synchronize());
      },
      "emu:0: the operation FollowNumber on stream 0 of emu:0 followed an address that its "
      "launcher has not translated");
}

// Writes the element `index` of an array, in one of two ways.
struct WriteAt {
  void operator()(size_t /*i*/, const DeviceArray<float>& array, size_t index) const {
    array[index] = 1;
  }
};
struct WriteUncheckedAt {
  void operator()(size_t /*i*/, const DeviceArray<float>& array, ptrdiff_t index) const {
    array.data()[index] = 1;
  }
};

template <typename Body, typename Index>
void Write(Body body, Index index) {
  const auto device = NewDevice();
  EmulatedStream& stream = device->default_stream();
  const auto block = NewFloats(stream, kCount);
  const auto next = NewFloats(stream, kCount);
  static_cast<void>(stream.Launch("Write", 1, body, DeviceArray<float>(*block), index));
  static_cast<void>(device->Synchronize());
}

TEST_F(EmulatedFaultsDeathTest, AnIndexIsOutOfRange) {
  EXPECT_DEATH(Write(WriteAt(), kCount),
               "the operation Write on stream 0 of emu:0 used element 100 of an array of 100");
}

// AddressSanitizer has reports of its own, behind which the operation is named.
constexpr char kNoBlock[] =
    "the operation Write on stream 0 of emu:0 used memory in no block|"
    "The error is in the operation Write on stream 0 of emu:0";

TEST_F(EmulatedFaultsDeathTest, AnAddressIsBehindTheEndOfItsBlock) {
  EXPECT_DEATH(Write(WriteUncheckedAt(), ptrdiff_t{112}), kNoBlock);
}

TEST_F(EmulatedFaultsDeathTest, AWriteIsJustBehindTheEndOfItsBlock) {
  EXPECT_DEATH(Write(WriteUncheckedAt(), ptrdiff_t{100}),
               "emu:0: the bytes behind a block of 400 bytes were written; found after the "
               "operation Write on stream 0 of emu:0");
}

TEST_F(EmulatedFaultsDeathTest, AWriteIsBeforeTheBeginOfItsBlock) {
  EXPECT_DEATH(Write(WriteUncheckedAt(), ptrdiff_t{-1}),
               "emu:0: the bytes before a block of 400 bytes were written; found after the "
               "operation Write on stream 0 of emu:0|"
               "The error is in the operation Write on stream 0 of emu:0");
}

TEST_F(EmulatedFaultsDeathTest, ABlockIsUsedAfterItIsFreed) {
  EXPECT_DEATH(
      {
        const auto device = NewDevice();
        EmulatedStream& stream = device->default_stream();
        auto block = NewFloats(stream, kCount);
        const DeviceArray<float> array(*block);
        block.reset();
        static_cast<void>(stream.Launch("Write", kCount, FillWith(), array, 1.0f));
        static_cast<void>(device->Synchronize());
      },
      kNoBlock);
}

TEST_F(EmulatedFaultsDeathTest, ACompletionWaitsForItsDevice) {
  EXPECT_DEATH(
      {
        const auto device = NewDevice();
        RecordOn(device->default_stream())->OnPassed([&](const absl::Status& /*result*/) {
          static_cast<void>(device->Synchronize());
        });
      },
      "a completion of an emulated device waits for the device");
}

TEST_F(EmulatedFaultsDeathTest, APinnedBlockIsFreedBeforeItsCopy) {
  EXPECT_DEATH(
      {
        const auto device = NewDevice();
        EmulatedStream& stream = device->default_stream();
        const auto block = NewFloats(stream, kCount);
        StartReading(stream, *block).reset();
        static_cast<void>(device->Synchronize());
      },
      "a pinned block was freed before CopyOut on stream 0 of emu:0");
}

}  // namespace
}  // namespace psd::testing
