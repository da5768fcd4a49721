#include "core/base/buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "tests/core/base/lent_block.h"

namespace psd {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::shared_ptr<Block> MustAllocate(Allocator& allocator, size_t bytes) {
  absl::StatusOr<std::shared_ptr<Block>> block = allocator.Allocate(bytes);
  EXPECT_TRUE(block.ok()) << block.status();
  return *block;
}

HeapAllocatorOptions Options(size_t map_threshold_bytes, size_t cache_bytes) {
  HeapAllocatorOptions options;
  options.map_threshold_bytes = map_threshold_bytes;
  options.cache_bytes = cache_bytes;
  return options;
}

bool IsMapped(const void* address) {
  unsigned char resident = 0;
  auto page = reinterpret_cast<uintptr_t>(address) & ~uintptr_t(getpagesize() - 1);
  return mincore(reinterpret_cast<void*>(page), 1, &resident) == 0;
}

TEST(HeapAllocatorTest, EverySizeIsAlignedAndWritable) {
  auto allocator = NewHeapAllocator();
  for (size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4096}, kMiB - 1, kMiB,
                       kMiB + 1, 2 * kMiB, 5 * kMiB + 3}) {
    auto block = MustAllocate(*allocator, bytes);
    EXPECT_EQ(block->size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % kBlockAlignment, 0u) << bytes;
    std::memset(block->data(), 0x5a, bytes);
    EXPECT_EQ(block->data()[bytes - 1], std::byte{0x5a});
  }
}

TEST(HeapAllocatorTest, MayBeReadUpToTheNextMultipleBehindTheEnd) {
  auto allocator = NewHeapAllocator();
  for (size_t bytes : {size_t{1}, size_t{100}, kMiB + 1}) {
    auto block = MustAllocate(*allocator, bytes);
    size_t whole = (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
    std::memset(block->data(), 1, whole);  // asan reports writes beyond the block's memory
    EXPECT_EQ(block->data()[whole - 1], std::byte{1});
  }
}

TEST(HeapAllocatorTest, ZeroBytesAreLegal) {
  for (size_t threshold : {kMiB, size_t{0}}) {
    auto allocator = NewHeapAllocator(Options(threshold, 0));
    auto block = MustAllocate(*allocator, 0);
    EXPECT_EQ(block->size(), 0u);
    EXPECT_NE(block->data(), nullptr);
    EXPECT_TRUE(Buffer(block).empty());
  }
}

TEST(HeapAllocatorTest, LargeBlocksStartAtHugePages) {
  auto allocator = NewHeapAllocator();
  for (size_t bytes : {2 * kMiB, 3 * kMiB, 64 * kMiB}) {
    auto block = MustAllocate(*allocator, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->data()) % (2 * kMiB), 0u) << bytes;
  }
}

TEST(HeapAllocatorTest, AbsurdSizesAreRefusedWithTheSizeNamed) {
  auto allocator = NewHeapAllocator();
  for (size_t bytes : {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() / 2,
                       std::numeric_limits<size_t>::max() - 63, size_t{1} << 62, size_t{1} << 48}) {
    absl::Status status = allocator->Allocate(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << bytes;
    EXPECT_NE(status.message().find(std::to_string(bytes)), absl::string_view::npos) << status;
  }
  MustAllocate(*allocator, 1);
}

TEST(HeapAllocatorTest, WithoutACacheMemoryGoesBackToTheSystem) {
  auto allocator = NewHeapAllocator(Options(kMiB, 0));
  auto block = MustAllocate(*allocator, 256 * kMiB);
  const void* inside = block->data() + 128 * kMiB;
  EXPECT_TRUE(IsMapped(inside));
  block.reset();
  EXPECT_FALSE(IsMapped(inside));
}

TEST(HeapAllocatorTest, TheCacheReusesAMappingOfTheSameLength) {
  auto allocator = NewHeapAllocator(Options(kMiB, 64 * kMiB));
  auto block = MustAllocate(*allocator, 8 * kMiB);
  const void* address = block->data();
  block.reset();
  EXPECT_TRUE(IsMapped(address));
  auto again = MustAllocate(*allocator, 8 * kMiB - 5);  // is rounded up to the same length
  EXPECT_EQ(again->data(), address);
  EXPECT_EQ(again->size(), 8 * kMiB - 5);
  auto other = MustAllocate(*allocator, 8 * kMiB);
  EXPECT_NE(other->data(), address);
}

TEST(HeapAllocatorTest, AMappingIsAtMostAnEighthLargerThanItsBlock) {
  for (const size_t bytes : {2 * kMiB + 1, 15 * kMiB + 1, 17 * kMiB + 1}) {
    auto allocator = NewHeapAllocator(Options(kMiB, bytes + bytes / 8));
    auto block = MustAllocate(*allocator, bytes);
    const void* address = block->data();
    block.reset();
    EXPECT_TRUE(IsMapped(address)) << "it is small enough to be kept: " << bytes;
  }
}

TEST(HeapAllocatorTest, TheCacheIsBounded) {
  auto allocator = NewHeapAllocator(Options(kMiB, 100 * kMiB));
  auto first = MustAllocate(*allocator, 64 * kMiB);
  auto second = MustAllocate(*allocator, 64 * kMiB);
  const void* kept = first->data();
  const void* given_back = second->data();
  first.reset();
  second.reset();
  EXPECT_TRUE(IsMapped(kept));
  EXPECT_FALSE(IsMapped(given_back));
}

TEST(HeapAllocatorTest, BlocksOutliveTheirAllocator) {
  auto allocator = NewHeapAllocator(Options(kMiB, 64 * kMiB));
  auto small = MustAllocate(*allocator, 100);
  auto large = MustAllocate(*allocator, 4 * kMiB);
  const auto other = MustAllocate(*allocator, 4 * kMiB);
  const void* address = large->data();
  allocator.reset();
  std::memset(small->data(), 1, small->size());
  std::memset(large->data(), 1, large->size());
  small.reset();
  large.reset();
  EXPECT_FALSE(IsMapped(address));  // nobody would use it again
}

TEST(HeapAllocatorTest, ManyThreads) {
  auto allocator = NewHeapAllocator(Options(64 << 10, 8 * kMiB));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&allocator, i] {
      for (int j = 0; j < 200; ++j) {
        auto block = MustAllocate(*allocator, (j % 5 + 1) * (40 << 10));
        std::memset(block->data(), i, block->size());
        EXPECT_EQ(block->data()[block->size() - 1], std::byte(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BufferTest, DefaultIsEmpty) {
  Buffer buffer;
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(buffer.view(), "");
  EXPECT_TRUE(buffer.Slice(0, 0).empty());
  EXPECT_EQ(buffer.owner(), nullptr);
}

TEST(BufferTest, KeepsItsBlock) {
  auto allocator = NewHeapAllocator();
  auto block = MustAllocate(*allocator, 5);
  std::memcpy(block->data(), "hello", 5);
  std::weak_ptr<Block> watch = block;
  {
    Buffer buffer(std::move(block));
    EXPECT_EQ(buffer.view(), "hello");
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(BufferTest, SlicesShareAndKeepAlive) {
  Buffer slice;
  {
    Buffer whole = Buffer::FromString("0123456789");
    slice = whole.Slice(2, 5);
    EXPECT_EQ(slice.data(), whole.data() + 2);
    EXPECT_EQ(slice.owner(), whole.owner());
  }
  EXPECT_EQ(slice.view(), "23456");
  EXPECT_EQ(slice.Slice(1, 3).view(), "345");
  EXPECT_EQ(slice.Slice(5, 0).view(), "");
  EXPECT_EQ(slice.Slice(0, 5).view(), "23456");
}

TEST(BufferTest, FromStringKeepsShortLongAndBinary) {
  EXPECT_TRUE(Buffer::FromString("").empty());
  Buffer small = Buffer::FromString("ab");
  Buffer copy = small;
  small = Buffer();
  EXPECT_EQ(copy.view(), "ab");  // the bytes of a short string are in the shared object
  std::string binary("\0\xff\0", 3);
  EXPECT_EQ(Buffer::FromString(binary).view(), binary);
  EXPECT_EQ(Buffer::FromString(std::string(kMiB, 'x')).size(), kMiB);
}

TEST(BufferTest, StableBytesDoNotChangeWithThoseThatAnotherProcessLent) {
  const auto lent = testing::LentBlock::Of("lent");
  const Buffer stable = *StableBytes(Buffer(lent));
  lent->data()[0] = std::byte{'b'};
  EXPECT_EQ(stable.view(), "lent");
  EXPECT_EQ(stable.place().kind(), MemoryPlace::Kind::kHeap);
  EXPECT_TRUE(StableBytes(Buffer(testing::LentBlock::Of("")))->empty());

  const Buffer own = Buffer::FromString("own");
  EXPECT_EQ(StableBytes(own)->data(), own.data());
  EXPECT_EQ(StableBytes(Buffer())->data(), nullptr);
}

}  // namespace
}  // namespace psd
