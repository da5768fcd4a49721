// Tests that the emulated device finds a missing event, and is content with the right ones.

#include <atomic>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/stream.h"
#include "core/base/tsan.h"
#include "core/device/emulated/visible_copy.h"
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

// As ReadBeforeWrite, with a declared user of the block instead of an event.
TEST(MissingEventTest, AWriterWaitsForTheUsersOfABlock) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto device = DeviceWithSeed(seed);
    EmulatedStream& writer = device->default_stream();
    EmulatedStream& reader = AddStreamTo(*device);
    const auto block = NewFloats(writer, kCount);
    EXPECT_TRUE(Fill(writer, *block, 1).ok());
    EXPECT_TRUE(device->Synchronize().ok());
    EXPECT_TRUE(reader.AlsoUses(*block).ok());
    const auto pinned = StartReading(reader, *block);
    EXPECT_TRUE(writer.WaitForUsers(*block).ok());
    EXPECT_TRUE(Fill(writer, *block, 2).ok());
    EXPECT_TRUE(RecordOn(writer)->Wait().ok());
    EXPECT_TRUE(RecordOn(reader)->Wait().ok());
    EXPECT_EQ(Floats(*pinned)[kCount - 1], 1) << "seed " << seed;
  }
}

// It is no user any more, so its later work is not waited for.
TEST(MissingEventTest, AUserIsWaitedForOnce) {
  const auto device = DeviceWithSeed(0);  // runs only what is waited for
  EmulatedStream& writer = device->default_stream();
  EmulatedStream& reader = AddStreamTo(*device);
  const auto block = NewFloats(writer, kCount);
  EXPECT_TRUE(reader.AlsoUses(*block).ok());
  EXPECT_TRUE(writer.WaitForUsers(*block).ok());
  const auto other = NewFloats(reader, kCount);
  const auto later = RecordOn(reader);
  EXPECT_TRUE(writer.WaitForUsers(*block).ok());
  EXPECT_TRUE(RecordOn(writer)->Wait().ok());
  EXPECT_FALSE(later->passed());
  EXPECT_TRUE(later->Wait().ok());
}

TEST(MissingEventTest, ABlockOfTheHostHasNoUsers) {
  const auto device = DeviceWithSeed(0);
  const auto block = *NewHeapAllocator()->Allocate(64);
  const absl::Status refused = device->default_stream().WaitForUsers(*block);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_EQ(device->default_stream().AlsoUses(*block), refused);
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

// Checks that `run` ends with a report that matches `found`, with every seed.
void ExpectReport(const std::string& found, const std::function<void(uint64_t seed)>& run) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_DEATH(
        {
          run(seed);
          std::exit(0);  // with another code if ThreadSanitizer has reported a race
        },
        found)
        << "seed " << seed;
  }
}

constexpr char kRaceWithFill[] = "data race.*FillWith";

TEST(MissingEventDeathTest, AReadThatDoesNotWaitForTheWriteIsARace) {
  ExpectReport(kRaceWithFill, [](uint64_t seed) { ReadBehindWrite(seed, false); });
}

TEST(MissingEventDeathTest, AWriteThatDoesNotWaitForTheReadIsARace) {
  ExpectReport(kRaceWithFill, [](uint64_t seed) { ReadBeforeWrite(seed, false); });
}

TEST(MissingEventDeathTest, WritesOfTwoStreamsAreARace) {
  ExpectReport(kRaceWithFill, [](uint64_t seed) {
    const auto device = DeviceWithSeed(seed);
    EmulatedStream& one = device->default_stream();
    EmulatedStream& two = AddStreamTo(*device);
    const auto block = NewFloats(one, kCount);
    ASSERT_TRUE(device->Synchronize().ok());
    ASSERT_TRUE(Fill(one, *block, 1).ok());
    ASSERT_TRUE(Fill(two, *block, 2).ok());
    EXPECT_TRUE(device->Synchronize().ok());
  });
}

// The event is one of the writer, but lies before the write.
TEST(MissingEventDeathTest, AReadThatWaitsForAnEarlierEventIsARace) {
  ExpectReport(kRaceWithFill, [](uint64_t seed) {
    const auto device = DeviceWithSeed(seed);
    EmulatedStream& writer = device->default_stream();
    EmulatedStream& reader = AddStreamTo(*device);
    const auto block = NewFloats(writer, kCount);
    const auto too_early = RecordOn(writer);
    ASSERT_TRUE(Fill(writer, *block, 1).ok());
    ASSERT_TRUE(reader.WaitFor(too_early).ok());
    Read(reader, *block);
  });
}

TEST(MissingEventDeathTest, TheHostReadsPinnedMemoryBeforeTheCopyIsDone) {
  ExpectReport("data race.*CopyOut", [](uint64_t seed) {
    const auto device = DeviceWithSeed(seed);
    EmulatedStream& stream = device->default_stream();
    const auto block = NewFloats(stream, kCount);
    ASSERT_TRUE(Fill(stream, *block, 1).ok());
    const auto pinned = StartReading(stream, *block);
    Floats(*pinned);
    EXPECT_TRUE(device->Synchronize().ok());
  });
}

TEST(MissingEventDeathTest, TheHostWritesPinnedMemoryBeforeTheCopyIsDone) {
  ExpectReport("data race.*CopyIn", [](uint64_t seed) {
    const auto device = DeviceWithSeed(seed);
    EmulatedStream& stream = device->default_stream();
    const auto block = NewFloats(stream, kCount);
    const auto pinned = *device->pinned_memory().Allocate(block->size());
    ASSERT_TRUE(stream.CopyIn(block->data(), pinned->data(), block->size()).ok());
    emulated::VisibleFill(pinned->data(), std::byte{1}, pinned->size());
    EXPECT_TRUE(device->Synchronize().ok());
  });
}

constexpr char kRaceOrNoBlock[] =
    "data race.*CopyOut|operation CopyOut on stream 1 of emu:0 used memory in no block";

// Memory is freed behind the work of the stream that allocated it. Another one used it as well.
TEST(MissingEventDeathTest, AUseThatIsNotDeclaredRacesWithTheNextUseOfTheMemory) {
  ExpectReport(kRaceOrNoBlock, [](uint64_t seed) {
    EmulatedDeviceOptions options;
    options.seed = seed;
    options.budget_bytes = kCount * sizeof(float);
    options.most_blocks = 1;
    const auto device = NewDevice(options);
    EmulatedStream& home = device->default_stream();
    EmulatedStream& other = AddStreamTo(*device);
    auto block = NewFloats(home, kCount);
    ASSERT_TRUE(Fill(home, *block, 1).ok());
    ASSERT_TRUE(other.WaitFor(RecordOn(home)).ok());
    const auto pinned = StartReading(other, *block);
    block.reset();
    const auto next = NewFloats(home, kCount);
    EXPECT_TRUE(device->Synchronize().ok());
  });
}

// One thread waits for a write. Another one adds the read afterwards, but nothing tells it so. What
// the device's calls do for both of them must not look like an order.
TEST(MissingEventDeathTest, SharingADeviceIsNoOrderBetweenThreads) {
  ExpectReport(kRaceWithFill, [](uint64_t seed) {
    const auto device = DeviceWithSeed(seed);
    EmulatedStream& writer = device->default_stream();
    EmulatedStream& reader = AddStreamTo(*device);
    const auto block = NewFloats(writer, kCount);
    auto mine = NewFloats(reader, kCount), others = NewFloats(writer, kCount);
    constexpr size_t kMappedBytes = size_t{1} << 20;  // a mapping of its own
    auto my_pinned = *device->pinned_memory().Allocate(kMappedBytes);
    auto others_pinned = *device->pinned_memory().Allocate(kMappedBytes);
    auto my_event = RecordOn(reader);
    EXPECT_TRUE(device->Synchronize().ok());
    std::atomic<bool> written{false};
    std::thread thread([&] {
      EXPECT_TRUE(Fill(writer, *block, 1).ok());
      Read(writer, *block);
      others.reset();
      others_pinned.reset();
      written.store(true, std::memory_order_relaxed);
    });
    while (!written.load(std::memory_order_relaxed)) std::this_thread::yield();
    mine.reset();
    my_pinned.reset();
    my_event.reset();
    Read(reader, *block);
    thread.join();
  });
}

// The event has passed when it is dropped, but only another thread has waited for it.
TEST(MissingEventDeathTest, DroppingAnEventIsNoWait) {
  ExpectReport(kRaceWithFill, [](uint64_t seed) {
    const auto device = DeviceWithSeed(seed);
    EmulatedStream& writer = device->default_stream();
    EmulatedStream& reader = AddStreamTo(*device);
    const auto block = NewFloats(writer, kCount);
    EXPECT_TRUE(device->Synchronize().ok());
    EXPECT_TRUE(Fill(writer, *block, 1).ok());
    auto event = RecordOn(writer);
    std::atomic<bool> passed{false};
    std::thread thread([&passed, behind = RecordOn(writer)] {
      EXPECT_TRUE(behind->Wait().ok());
      passed.store(true, std::memory_order_relaxed);
    });
    while (!passed.load(std::memory_order_relaxed)) std::this_thread::yield();
    event.reset();
    Read(reader, *block);
    thread.join();
  });
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
