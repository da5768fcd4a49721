#include "core/base/shared_allocator.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <initializer_list>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/log.h"
#include "core/base/memory_place.h"
#include "core/base/mutex.h"
#include "core/base/shared_segment.h"

namespace psd {
namespace {

constexpr size_t kLarge = size_t{1} << 20;

std::shared_ptr<Allocator> Allocating(size_t cache_bytes) {
  SharedAllocatorOptions options;
  options.cache_bytes = cache_bytes;
  return NewSharedAllocator(options);
}

// Returns the segment's id; 0 if the block is in none.
uint64_t SegmentOf(const Block& block) {
  SharedSegment* const segment = block.place().segment();
  return segment == nullptr ? 0 : segment->id();
}

TEST(SharedAllocatorTest, LargeBlocksAreInSegmentsAndSmallOnesOnTheHeap) {
  SharedAllocatorOptions options;
  options.segment_threshold_bytes = 10000;
  const auto allocator = NewSharedAllocator(options);
  const auto small = *allocator->Allocate(9999);
  EXPECT_EQ(small->place().kind(), MemoryPlace::Kind::kHeap);
  const auto large = *allocator->Allocate(10000);
  ASSERT_EQ(large->place().kind(), MemoryPlace::Kind::kSegment);
  EXPECT_EQ(large->size(), 10000u);
  EXPECT_EQ(large->offset(), 0u);
  EXPECT_EQ(large->data(), large->place().segment()->data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large->data()) % kBlockAlignment, 0u);
  EXPECT_NE(SegmentOf(*large), SegmentOf(**allocator->Allocate(10000)));
}

TEST(SharedAllocatorTest, AFreedSegmentIsUsedAgain) {
  const auto allocator = Allocating(2 * kLarge);
  auto block = *allocator->Allocate(kLarge);
  const uint64_t id = SegmentOf(*block);
  block.reset();
  EXPECT_NE(SegmentOf(**allocator->Allocate(2 * kLarge)), id);  // another length
  block = *allocator->Allocate(kLarge - 100);
  EXPECT_EQ(SegmentOf(*block), id);
  EXPECT_EQ(block->size(), kLarge - 100);
}

TEST(SharedAllocatorTest, ARetiredSegmentIsNot) {
  const auto allocator = Allocating(2 * kLarge);
  auto block = *allocator->Allocate(kLarge);
  const uint64_t id = SegmentOf(*block);
  block->place().segment()->Retire();
  EXPECT_TRUE(block->place().segment()->retired());
  block.reset();
  EXPECT_NE(SegmentOf(**allocator->Allocate(kLarge)), id);
}

TEST(SharedAllocatorTest, KeepsNoMoreThanItsCacheHolds) {
  const auto allocator = Allocating(kLarge);
  auto one = *allocator->Allocate(kLarge);
  auto two = *allocator->Allocate(kLarge);
  const std::weak_ptr<SharedSegment> kept = one->place().segment()->weak_from_this();
  const std::weak_ptr<SharedSegment> freed = two->place().segment()->weak_from_this();
  one.reset();
  two.reset();
  EXPECT_FALSE(kept.expired());
  EXPECT_TRUE(freed.expired());
}

TEST(SharedAllocatorTest, BlocksOutliveTheAllocatorAndNothingIsLeftAfterThem) {
  auto allocator = Allocating(kLarge);
  auto block = *allocator->Allocate(kLarge);
  const std::weak_ptr<SharedSegment> segment = block->place().segment()->weak_from_this();
  allocator.reset();
  block->data()[kLarge - 1] = std::byte{1};
  block.reset();
  EXPECT_TRUE(segment.expired());
}

TEST(SharedAllocatorTest, NothingIsKeptForAnAllocatorThatIsGone) {
  auto allocator = Allocating(3 * kLarge);
  auto early = *allocator->Allocate(kLarge);
  auto late = *allocator->Allocate(kLarge);
  const auto still = *allocator->Allocate(kLarge);
  const std::weak_ptr<SharedSegment> cached = early->place().segment()->weak_from_this();
  const std::weak_ptr<SharedSegment> freed = late->place().segment()->weak_from_this();
  early.reset();
  EXPECT_FALSE(cached.expired());
  allocator.reset();
  EXPECT_TRUE(cached.expired());
  late.reset();
  EXPECT_TRUE(freed.expired());
}

TEST(SharedAllocatorTest, RefusesWhatNoSystemHas) {
  EXPECT_EQ(Allocating(0)->Allocate(SIZE_MAX).status().code(),
            absl::StatusCode::kResourceExhausted);
}

class CountingLogger : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel, absl::string_view event, absl::string_view message,
           std::initializer_list<LogField>) override {
    MutexLock lock(mutex_);
    events_.emplace_back(event);
    message_ = std::string(message);
  }
  std::vector<std::string> events() {
    MutexLock lock(mutex_);
    return events_;
  }
  std::string message() {
    MutexLock lock(mutex_);
    return message_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> events_ PSD_GUARDED_BY(mutex_);
  std::string message_ PSD_GUARDED_BY(mutex_);
};

// In a process that may have four segments: the fifth block and the sixth are on the heap, which is
// said once; then freed segments of another length make way for a new one.
void RunOut() {
  const rlimit both = {16, 16};
  if (setrlimit(RLIMIT_NOFILE, &both) != 0) _exit(1);
  const auto logger = std::make_shared<CountingLogger>();
  SharedAllocatorOptions options;
  options.cache_bytes = 8 * kLarge;
  options.logger = logger;
  const auto allocator = NewSharedAllocator(options);
  std::vector<std::shared_ptr<Block>> blocks;
  for (int i = 0; i < 6; ++i) {
    blocks.push_back(*allocator->Allocate(kLarge));
    blocks.back()->data()[kLarge - 1] = std::byte{1};
    if ((SegmentOf(*blocks.back()) != 0) != (i < 4)) _exit(10 + i);
  }
  if (logger->events() != std::vector<std::string>{"segments_refused"}) _exit(2);
  std::cerr << logger->message() << std::endl;
  blocks.clear();
  _exit(SegmentOf(**allocator->Allocate(2 * kLarge)) != 0 ? 0 : 3);
}

TEST(SharedAllocatorDeathTest, AtALimitBlocksComeFromTheHeapAndTheLimitIsNamedOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunOut(), testing::ExitedWithCode(0), "ordinary memory.*4 segments.*RLIMIT_NOFILE");
}

bool IsMapped(std::byte* page) {
  unsigned char resident = 0;
  return mincore(page, 1, &resident) == 0;
}

// In a process that may have four segments and keeps one block: a block that found no segment is
// kept if no segment is.
void FreeBoth() {
  const rlimit both = {16, 16};
  if (setrlimit(RLIMIT_NOFILE, &both) != 0) _exit(1);
  const auto allocator = Allocating(kLarge);
  std::vector<std::shared_ptr<Block>> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(*allocator->Allocate(kLarge));
  std::byte* const heap = blocks[4]->data();
  blocks[4].reset();
  if (!IsMapped(heap)) _exit(2);
  const std::weak_ptr<SharedSegment> freed = blocks[0]->place().segment()->weak_from_this();
  blocks[0].reset();
  if (!freed.expired()) _exit(3);
  blocks[4] = *allocator->Allocate(kLarge);
  if (SegmentOf(*blocks[4]) == 0) _exit(4);  // there was a descriptor for it again
  const std::weak_ptr<SharedSegment> kept = blocks[1]->place().segment()->weak_from_this();
  allocator->ReleaseUnused();
  allocator->ReleaseUnused();
  blocks[1].reset();
  if (kept.expired()) _exit(5);
  std::byte* const other = blocks[5]->data();
  blocks[5].reset();
  _exit(IsMapped(other) ? 6 : 0);
}

TEST(SharedAllocatorDeathTest, KeptSegmentsAndKeptBlocksOfTheHeapHaveOneBound) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(FreeBoth(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace psd
