// Tests that the emulated device finds a missing event, and is content with the right ones.

#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "core/base/tsan.h"
#include "core/device/stream_device.h"
#include "tests/core/device/emulated_kernels.h"

namespace psd::testing {
namespace {

constexpr size_t kCount = 100;
constexpr uint64_t kSeeds = 16;

// One stream writes 1, and later 2. Another one reads after the 2 was added. Returns what it reads.
float ReadBehindWrite(uint64_t seed, bool with_event) {
  const auto device = DeviceWithSeed(seed);
  EmulatedStream& writer = device->default_stream();
  EmulatedStream& reader = AddStreamTo(*device);
  const auto block = NewFloats(writer, kCount);
  EXPECT_TRUE(Fill(writer, *block, 1).ok());
  EXPECT_TRUE(device->Synchronize().ok());
  EXPECT_TRUE(Fill(writer, *block, 2).ok());
  if (with_event) {
    EXPECT_TRUE(reader.WaitFor(RecordOn(writer)).ok());
  }
  return Read(reader, *block)[kCount - 1];
}

// One stream reads 1. Another one writes 2 afterwards. Returns what the first one has read.
float ReadBeforeWrite(uint64_t seed, bool with_event) {
  const auto device = DeviceWithSeed(seed);
  EmulatedStream& writer = device->default_stream();
  EmulatedStream& reader = AddStreamTo(*device);
  const auto block = NewFloats(writer, kCount);
  EXPECT_TRUE(Fill(writer, *block, 1).ok());
  EXPECT_TRUE(device->Synchronize().ok());
  const auto pinned = StartReading(reader, *block);
  if (with_event) {
    EXPECT_TRUE(writer.WaitFor(RecordOn(reader)).ok());
  }
  EXPECT_TRUE(Fill(writer, *block, 2).ok());
  EXPECT_TRUE(RecordOn(writer)->Wait().ok());
  EXPECT_TRUE(RecordOn(reader)->Wait().ok());
  return Floats(*pinned)[kCount - 1];
}

TEST(MissingEventTest, WithTheEventTheResultIsRightWithEverySeed) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    EXPECT_EQ(ReadBehindWrite(seed, true), 2) << "seed " << seed;
    EXPECT_EQ(ReadBeforeWrite(seed, true), 1) << "seed " << seed;
  }
}

#ifndef PSD_TSAN

TEST(MissingEventTest, AReadThatDoesNotWaitForTheWriteComesTooEarly) {
  EXPECT_EQ(ReadBehindWrite(0, false), 1);
}

TEST(MissingEventTest, AWriteThatDoesNotWaitForTheReadComesTooEarly) {
  EXPECT_EQ(ReadBeforeWrite(0, false), 2);
}

TEST(MissingEventTest, OtherSeedsTryOtherOrders) {
  std::set<float> behind, before;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    behind.insert(ReadBehindWrite(seed, false));
    before.insert(ReadBeforeWrite(seed, false));
  }
  EXPECT_EQ(behind.size(), 2u);
  EXPECT_EQ(before.size(), 2u);
}

TEST(MissingEventTest, TheSameSeedGivesTheSameResult) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed)
    EXPECT_EQ(ReadBehindWrite(seed, false), ReadBehindWrite(seed, false)) << "seed " << seed;
}

#else

TEST(MissingEventDeathTest, ThreadSanitizerReportsARace) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ReadBehindWrite(1, false);
        std::exit(0);
      },
      ::testing::ExitedWithCode(66), "data race");
  EXPECT_EXIT(
      {
        ReadBeforeWrite(0, false);
        std::exit(0);
      },
      ::testing::ExitedWithCode(66), "data race");
}

#endif

TEST(MissingEventDeathTest, MemoryIsUsedBeforeItIsAllocatedInStreamOrder) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const auto device = DeviceWithSeed(0);
        EmulatedStream& other = AddStreamTo(*device);
        const auto block = NewFloats(device->default_stream(), kCount);
        Read(other, *block);
      },
      "CopyOut on stream 1 of emu:0");
}

// Each stream adds to a block in turn, ordered by events. Threads add the work of other blocks at
// the same time.
TEST(MissingEventTest, ManyStreamsAndThreadsGetTheRightSums) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto device = DeviceWithSeed(seed);
    std::vector<EmulatedStream*> streams = {&device->default_stream()};
    for (int i = 0; i < 3; ++i) streams.push_back(&AddStreamTo(*device));
    std::vector<std::thread> threads;
    for (size_t first = 0; first < streams.size(); ++first) {
      threads.emplace_back([&, first] {
        EmulatedStream& home = *streams[first];
        const auto sum = NewFloats(home, kCount);
        EXPECT_TRUE(Fill(home, *sum, 0).ok());
        auto event = RecordOn(home);
        for (size_t i = 0; i < 12; ++i) {
          EmulatedStream& stream = *streams[(first + i) % streams.size()];
          EXPECT_TRUE(stream.WaitFor(event).ok());
          const auto more = NewFloats(stream, kCount);
          EXPECT_TRUE(Fill(stream, *more, static_cast<float>(i)).ok());
          EXPECT_TRUE(stream.AlsoUses(*sum).ok());
          EXPECT_TRUE(stream
                          .Launch("AddTo", kCount, AddTo(), DeviceArray<float>(*sum),
                                  DeviceArray<const float>(*more))
                          .ok());
          event = RecordOn(stream);
        }
        EXPECT_TRUE(home.WaitFor(event).ok());
        EXPECT_EQ(Read(home, *sum), Equal(kCount, 66)) << "seed " << seed;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(device->used_bytes(), 0u);
    EXPECT_TRUE(device->Synchronize().ok());
  }
}

}  // namespace
}  // namespace psd::testing
