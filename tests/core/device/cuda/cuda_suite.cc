#include "tests/core/device/cuda/cuda_suite.h"

#include <cuda_runtime_api.h>

#include <future>
#include <limits>
#include <thread>

#include "gmock/gmock.h"

namespace psd::testing {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCount = 1000;
// The bytes of the budget that a block of `kCount` ints takes.
constexpr size_t kCountBytes = 4096;

std::vector<int> Equal(int value) {
  return std::vector<int>(kCount, value);
}

TEST_F(CudaSuite, CopiesInWithinAndOut) {
  const auto device = OpenDevice();
  EXPECT_EQ(device->name(), "cuda:0");
  const std::vector<int> ints = {1, 2, 3};
  const size_t bytes = sizeof(int) * ints.size();
  const auto first = device->memory().Allocate(bytes);
  const auto second = device->memory().Allocate(bytes);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)->place().device(), device.get());
  EXPECT_FALSE((*first)->place().host_readable());
  ASSERT_TRUE(
      device->CopyIn((*first)->data(), reinterpret_cast<const std::byte*>(ints.data()), bytes)
          .ok());
  ASSERT_TRUE(device->CopyWithin((*second)->data(), (*first)->data(), bytes).ok());
  std::vector<int> out(3);
  ASSERT_TRUE(
      device->CopyOut(reinterpret_cast<std::byte*>(out.data()), (*second)->data(), bytes).ok());
  EXPECT_EQ(out, ints);
}

TEST_F(CudaSuite, CompletionsAreCalledAfterTheWork) {
  const auto device = OpenDevice();
  Stream& stream = device->default_stream();
  const auto block = NewInts(stream, kCount);
  const auto source = StartFilling(stream, *block, 3);
  const auto pinned = StartReading(stream, *block);
  std::promise<std::vector<int>> seen;
  RecordOn(stream)->OnPassed([&](absl::Status result) {
    EXPECT_TRUE(result.ok()) << result;
    seen.set_value(Ints(*pinned));
  });
  EXPECT_EQ(seen.get_future().get(), Equal(3));
}

TEST_F(CudaSuite, ACompletionMayAddWorkAndFreeBlocks) {
  const auto device = OpenDevice();
  Stream& stream = device->default_stream();
  auto block = NewInts(stream, kCount);
  const auto other = NewInts(stream, kCount);
  std::shared_ptr<Block> source;
  std::promise<void> called;
  RecordOn(stream)->OnPassed([&](const absl::Status& result) {
    EXPECT_TRUE(result.ok()) << result;
    source = StartFilling(stream, *other, 8);
    block.reset();
    called.set_value();
  });
  called.get_future().wait();
  EXPECT_EQ(device->used_bytes(), kCountBytes);
  const auto read = StartReading(stream, *other);
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_EQ(Ints(*read), Equal(8));
}

TEST_F(CudaSuite, AnEventPassesForAThreadThatAsksAgainAndAgain) {
  const auto device = OpenDevice();
  const auto block = NewInts(device->default_stream(), kCount);
  const auto source = StartFilling(device->default_stream(), *block, 1);
  const auto event = RecordOn(device->default_stream());
  while (!event->passed()) std::this_thread::yield();
  EXPECT_TRUE(event->Wait().ok());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaSuite, AnEventMayOutliveItsDevice) {
  std::shared_ptr<Event> event;
  {
    const auto device = OpenDevice();
    event = RecordOn(device->default_stream());
  }
  EXPECT_TRUE(event->passed());
  EXPECT_TRUE(event->Wait().ok());
  absl::Status called = absl::UnknownError("not called");
  event->OnPassed([&](absl::Status result) { called = std::move(result); });
  EXPECT_TRUE(called.ok()) << called;
}

TEST_F(CudaSuite, WorkOfTwoStreamsIsOrderedByEvents) {
  const auto device = OpenDevice();
  Stream& one = device->default_stream();
  Stream& two = **device->AddStream();
  const auto block = NewInts(one, kCount);
  const auto source = StartFilling(one, *block, 5);
  ASSERT_TRUE(two.WaitFor(RecordOn(one)).ok());
  ASSERT_TRUE(two.AlsoUses(*block).ok());
  const auto read = StartReading(two, *block);
  ASSERT_TRUE(RecordOn(two)->Wait().ok());
  EXPECT_EQ(Ints(*read), Equal(5));
}

// A scope's stream gets the allocation and the copies.
TEST_F(CudaSuite, ComputationsAreAddedToTheStreamOfTheScope) {
  const auto device = OpenDevice();
  Stream& two = **device->AddStream();
  const StreamScope scope(two);
  const auto block = device->memory().Allocate(sizeof(int));
  ASSERT_TRUE(block.ok());
  const auto source = StartFilling(two, **block, 9);
  int out = 0;
  ASSERT_TRUE(
      device->CopyOut(reinterpret_cast<std::byte*>(&out), (*block)->data(), sizeof(int)).ok());
  EXPECT_EQ(out, 9);
}

TEST_F(CudaSuite, AddressesOfTheHostAreRefused) {
  const auto device = OpenDevice();
  Stream& stream = device->default_stream();
  std::vector<std::byte> host(40);
  const absl::Status out = stream.CopyOut(host.data(), host.data(), 40);
  EXPECT_EQ(out.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(out.message(), HasSubstr("CopyOut on stream 0 of cuda:0 was given 40 bytes that are "
                                       "not in the memory"));
  const auto block = NewInts(stream, 10);
  const absl::Status in = stream.CopyIn(block->data(), host.data(), 40);
  EXPECT_EQ(in.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(in.message(), HasSubstr("the pinned memory of cuda:0"));
  EXPECT_EQ(device->CopyIn(block->data(), host.data(), 41).code(),
            absl::StatusCode::kInvalidArgument);
}

// ---- memory

TEST_F(CudaSuite, ABlockMayBeFreedWhileWorkUsesIt) {
  const auto device = OpenDevice();
  Stream& stream = device->default_stream();
  auto block = NewInts(stream, kCount);
  const auto source = StartFilling(stream, *block, 7);
  const auto read = StartReading(stream, *block);
  block.reset();
  EXPECT_EQ(device->used_bytes(), 0u);
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_EQ(Ints(*read), Equal(7));
}

// The budget has room for two blocks only.
TEST_F(CudaSuite, MemoryIsUsedAgainAfterTheWorkOfAllStreamsThatUseIt) {
  CudaDeviceOptions options;
  options.budget_bytes = 2 * kCountBytes;
  const auto device = OpenDevice(options);
  Stream& one = device->default_stream();
  Stream& two = **device->AddStream();
  std::vector<std::shared_ptr<Block>> sources, read;
  for (int i = 0; i < 10; ++i) {
    Stream& home = i % 3 == 0 ? two : one;
    Stream& other = i % 3 == 0 ? one : two;
    const auto block = NewInts(home, kCount);
    sources.push_back(StartFilling(home, *block, i));
    ASSERT_TRUE(other.WaitFor(RecordOn(home)).ok());
    ASSERT_TRUE(other.AlsoUses(*block).ok());
    read.push_back(StartReading(other, *block));
  }
  ASSERT_TRUE(device->Synchronize().ok());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Ints(*read[i]), Equal(i));
}

TEST_F(CudaSuite, ABlockThatIsWrittenAgainWaitsForItsUsers) {
  const auto device = OpenDevice();
  Stream& home = device->default_stream();
  Stream& reader = **device->AddStream();
  const auto block = NewInts(home, kCount);
  const auto first = StartFilling(home, *block, 1);
  ASSERT_TRUE(reader.WaitFor(RecordOn(home)).ok());
  ASSERT_TRUE(reader.AlsoUses(*block).ok());
  const auto read = StartReading(reader, *block);
  ASSERT_TRUE(home.WaitForUsers(*block).ok());
  const auto second = StartFilling(home, *block, 2);
  ASSERT_TRUE(RecordOn(home)->Wait().ok());
  ASSERT_TRUE(RecordOn(reader)->Wait().ok());
  EXPECT_EQ(Ints(*read), Equal(1));
}

TEST_F(CudaSuite, ErrorsOfMemoryNameNeedBudgetAndUse) {
  CudaDeviceOptions options;
  options.budget_bytes = 2000;
  const auto device = OpenDevice(options);
  const auto block = device->memory().Allocate(800);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(device->budget_bytes(), 1536u);  // in units of 512
  EXPECT_EQ(device->used_bytes(), 1024u);
  for (const size_t bytes : {size_t{600}, std::numeric_limits<size_t>::max()})
    EXPECT_EQ(device->default_stream().Allocate(bytes).status().code(),
              absl::StatusCode::kResourceExhausted);
  const auto more = device->default_stream().Allocate(1100);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(more.status().message(),
              HasSubstr("cuda:0 has no room for 1100 bytes more: the budget is 1536 bytes, of "
                        "which 1024 are in use"));
  const auto pinned = device->pinned_memory().Allocate(size_t{1} << 40);
  EXPECT_EQ(pinned.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(pinned.status().message(), HasSubstr("pinned memory of cuda:0 has no room for"));
}

TEST_F(CudaSuite, PinnedMemoryIsUsedAgain) {
  const auto device = OpenDevice();
  Allocator& pinned = device->pinned_memory();
  auto half = *pinned.Allocate(size_t{64} << 10);
  const auto middle = *pinned.Allocate(64);
  half.reset();
  const auto scattered = pinned.Allocate(size_t{100} << 10);
  EXPECT_EQ(scattered.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(scattered.status().message(), HasSubstr("the largest free piece has 65536 bytes"));
  EXPECT_TRUE(pinned.Allocate(size_t{64} << 10).ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(middle->data()) % kBlockAlignment, 0u);
}

TEST_F(CudaSuite, BlocksOfNoBytesHaveAddressesOfTheirOwn) {
  const auto device = OpenDevice();
  const auto first = NewInts(device->default_stream(), 0);
  const auto second = NewInts(device->default_stream(), 0);
  EXPECT_NE(first->data(), second->data());
  EXPECT_TRUE(device->CopyIn(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device->CopyWithin(nullptr, nullptr, 0).ok());
  EXPECT_TRUE(device->CopyOut(nullptr, nullptr, 0).ok());
}

TEST_F(CudaSuite, StreamsAreBounded) {
  const auto device = OpenDevice();
  for (size_t i = 1; i < kMaxStreams; ++i) ASSERT_TRUE(device->AddStream().ok());
  const auto more = device->AddStream();
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(more.status().message(), HasSubstr("cuda:0 has 32 streams already"));
}

TEST_F(CudaSuite, ATableIsKeptUntilItHasBeenCopied) {
  const auto device = OpenDevice();
  CudaStream& stream = device->default_stream();
  const auto first = NewInts(stream, kCount), second = NewInts(stream, kCount);
  ASSERT_TRUE(CopyTableTo(stream, *first, 1).ok());
  ASSERT_TRUE(CopyTableTo(stream, *second, 2).ok());
  const auto read = StartReading(stream, *first);
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_EQ(Ints(*read), Equal(1));
}

TEST_F(CudaSuite, WorkReadsItsTableAlsoWithoutPinnedMemory) {
  const auto device = OpenDevice();
  CudaStream& stream = device->default_stream();
  const auto first = NewInts(stream, kCount), second = NewInts(stream, kCount);
  ASSERT_TRUE(CopyTableTo(stream, *first, 6).ok());
  ASSERT_TRUE(device->Synchronize().ok());
  const auto read = StartReading(stream, *first);
  const auto read_again = StartReading(stream, *second);
  const size_t used = device->used_bytes();
  {
    std::vector<std::shared_ptr<Block>> all;
    for (auto each = device->pinned_memory().Allocate(1024); each.ok();
         each = device->pinned_memory().Allocate(1024))
      all.push_back(*std::move(each));
    ASSERT_TRUE(CopyTableTo(stream, *second, 4).ok());
  }
  EXPECT_EQ(device->used_bytes(), used);  // tables are outside of the budget
  ASSERT_TRUE(stream.CopyOut(read_again->data(), second->data(), second->size()).ok());
  ASSERT_TRUE(device->Synchronize().ok());
  EXPECT_EQ(Ints(*read), Equal(6));
  EXPECT_EQ(Ints(*read_again), Equal(4));
}

}  // namespace
}  // namespace psd::testing
