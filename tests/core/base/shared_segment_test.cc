#include "core/base/shared_segment.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/base/aligned_mapping.h"
#include "core/base/memory_mapping.h"
#include "core/base/memory_place.h"
#include "core/base/sealed_memory.h"
#include "core/base/unique_fd.h"

namespace psd {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class Hearer : public SegmentWatcher {
 public:
  void Gone(uint64_t segment) override { gone.push_back(segment); }
  std::vector<uint64_t> gone;
};

MemoryMapping MappedElsewhere(const SharedSegment& segment) {
  auto mapping = MapSealedMemory(UniqueFd(dup(segment.fd())), segment.bytes(), "a test");
  EXPECT_TRUE(mapping.ok()) << mapping.status();
  return mapping.ok() ? *std::move(mapping) : MemoryMapping();
}

class SharedSegmentSizeTest : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, SharedSegmentSizeTest,
                         testing::Values(1, 4096, kMiB, 2 * kMiB, 5 * kMiB + 17, 33 * kMiB));

// Small pages, huge pages, and huge pages followed by small ones.
TEST_P(SharedSegmentSizeTest, AnotherProcessReadsAllThatIsWritten) {
  const auto segment = *SharedSegment::Create(GetParam());
  ASSERT_EQ(segment->bytes(), MappingLength(GetParam()));
  const MemoryMapping mapping = MappedElsewhere(*segment);
  ASSERT_EQ(mapping.size(), segment->bytes());
  EXPECT_NE(mapping.data(), segment->data());
  for (size_t at = 0; at < segment->bytes(); at += kPageBytes) {
    EXPECT_EQ(segment->data()[at], std::byte{0});
    segment->data()[at] = std::byte{static_cast<unsigned char>(1 + at / kPageBytes % 255)};
  }
  segment->data()[segment->bytes() - 1] = std::byte{77};
  EXPECT_EQ(std::memcmp(segment->data(), mapping.data(), segment->bytes()), 0);
}

TEST(SharedSegmentTest, AMappingOutlivesItsMaker) {
  auto segment = *SharedSegment::Create(4096);
  const MemoryMapping mapping = MappedElsewhere(*segment);
  segment->data()[100] = std::byte{42};
  segment.reset();
  EXPECT_EQ(mapping.data()[100], std::byte{42});
}

// A large mapping is removed in pieces.
TEST(MemoryMappingTest, NothingIsLeftOfARemovedMapping) {
  constexpr size_t kBytes = 40 * kMiB + kPageBytes;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  auto* const data = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ, flags, -1, 0));
  ASSERT_NE(data, MAP_FAILED);
  { const MemoryMapping mapping(data, kBytes); }
  size_t left = 0;
  for (size_t at = 0; at < kBytes; at += kPageBytes) {
    unsigned char resident = 0;
    if (mincore(data + at, kPageBytes, &resident) == 0) ++left;
  }
  EXPECT_EQ(left, 0u);
}

TEST(SharedSegmentTest, NobodyElseMapsItForWriting) {
  const auto segment = *SharedSegment::Create(4096);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd(), 0), MAP_FAILED);
}

TEST(SharedSegmentTest, ItsPlaceNamesIt) {
  const auto segment = *SharedSegment::Create(4096);
  EXPECT_EQ(segment->place().kind(), MemoryPlace::Kind::kSegment);
  EXPECT_EQ(segment->place().segment(), segment.get());
  EXPECT_TRUE(segment->place().host_readable());
}

TEST(SharedSegmentTest, IdsAreNeverUsedAgain) {
  const uint64_t first = (*SharedSegment::Create(4096))->id();
  const auto second = *SharedSegment::Create(4096);
  EXPECT_NE(first, 0u);
  EXPECT_GT(second->id(), first);
}

TEST(SharedSegmentTest, WatchersHearOnceThatItIsGone) {
  auto segment = *SharedSegment::Create(4096);
  const uint64_t id = segment->id();
  const auto hearer = std::make_shared<Hearer>();
  auto leaves = std::make_shared<Hearer>();
  segment->Watch(leaves);
  segment->Watch(hearer);
  leaves.reset();
  EXPECT_TRUE(hearer->gone.empty());
  segment.reset();
  EXPECT_EQ(hearer->gone, std::vector<uint64_t>{id});
}

// Makes segments until there is no place for another one, in a process that may have 64
// descriptors. Ends the process, with 0 if there were as many as there should be, and there is a
// place again once one is gone.
void FillUp() {
  const rlimit both = {64, 64};
  if (setrlimit(RLIMIT_NOFILE, &both) != 0) _exit(1);
  std::vector<std::shared_ptr<SharedSegment>> segments;
  auto next = SharedSegment::Create(4096);
  for (; next.ok(); next = SharedSegment::Create(4096)) segments.push_back(*next);
  std::cerr << next.status() << std::endl;
  if (segments.size() != 16 || SharedSegment::MostSegments() != 16) _exit(2);
  segments.pop_back();
  _exit(SharedSegment::Create(4096).ok() && absl::IsResourceExhausted(next.status()) ? 0 : 3);
}

TEST(SharedSegmentDeathTest, AProcessUsesAQuarterOfItsDescriptors) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(FillUp(), testing::ExitedWithCode(0), "has 16 segments.*RLIMIT_NOFILE.*ulimit -n");
}

}  // namespace
}  // namespace psd
