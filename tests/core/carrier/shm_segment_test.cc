// Descriptors that a peer may pass, and what they may be used for afterwards.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/memory_budget.h"
#include "core/carrier/shm/segment.h"

namespace psd::carrier {
namespace {

constexpr int kAllSeals =
    F_SEAL_SHRINK | F_SEAL_GROW | 0x10 /* F_SEAL_FUTURE_WRITE */ | F_SEAL_SEAL;
const RingSizes kSizes{4096, 8192, 2};

std::shared_ptr<MemoryAccount> Account(size_t limit = 0) {
  return MemoryAccount::Create(limit, NewHeapAllocator());
}

// Memory as a peer makes it, with a mistake.
UniqueFd Forged(size_t bytes, int seals, bool allocate) {
  UniqueFd fd(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (allocate) {
    EXPECT_EQ(posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)), 0);
  }
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

void ExpectRefused(UniqueFd fd, const std::string& why) {
  const auto mapped = PeerSegment::Map(kSizes, std::move(fd));
  EXPECT_EQ(mapped.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(mapped.status().message(), why)) << mapped.status();
}

TEST(ShmSegmentTest, ThePeerReadsWhatTheMakerWrites) {
  auto own = *OwnSegment::Create(kSizes, *Account());
  auto peer = *PeerSegment::Map(kSizes, UniqueFd(dup(own->fd())));
  own->ring(2)[8191] = std::byte{42};
  own->header().rings[1].out.tail.store(77);
  EXPECT_EQ(peer->ring(2)[8191], std::byte{42});
  EXPECT_EQ(peer->header().rings[1].out.tail.load(), 77u);
}

TEST(ShmSegmentTest, NobodyCanChangeTheMakersSegment) {
  auto own = *OwnSegment::Create(kSizes, *Account());
  const size_t bytes = kSizes.SegmentBytes();
  EXPECT_EQ(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own->fd(), 0), MAP_FAILED);
  EXPECT_NE(ftruncate(own->fd(), 0), 0);
  EXPECT_NE(pwrite(own->fd(), "x", 1, 0), 1);
  EXPECT_NE(fallocate(own->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  void* readable = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, own->fd(), 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_NE(mprotect(readable, bytes, PROT_READ | PROT_WRITE), 0);
  munmap(readable, bytes);
}

TEST(ShmSegmentTest, SomethingThatIsNoSharedMemoryIsRefused) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ExpectRefused(UniqueFd(ends[0]), "no sealed memory");
  close(ends[1]);
  ExpectRefused(UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "no sealed memory");
  ExpectRefused(UniqueFd(), "no sealed memory");
}

TEST(ShmSegmentTest, MissingSealsAreRefused) {
  const size_t bytes = kSizes.SegmentBytes();
  ExpectRefused(Forged(bytes, 0, true), "has the seals 0");
  ExpectRefused(Forged(bytes, F_SEAL_SHRINK | F_SEAL_GROW, true), "has the seals 6");
  ExpectRefused(Forged(bytes, F_SEAL_GROW | 0x10, true), "has the seals 20");
  ExpectRefused(Forged(bytes, kAllSeals & ~F_SEAL_SEAL, true), "has the seals 22");
  ExpectRefused(Forged(bytes, kAllSeals | F_SEAL_WRITE, true), "has the seals 31");
}

TEST(ShmSegmentTest, ASegmentOfAnotherLengthIsRefused) {
  const size_t bytes = kSizes.SegmentBytes();
  ExpectRefused(Forged(bytes - 4096, kAllSeals, true), "its rings take 24576");
  ExpectRefused(Forged(bytes + 4096, kAllSeals, true), "its rings take 24576");
}

TEST(ShmSegmentTest, ASegmentWhosePagesDoNotExistIsRefused) {
  ExpectRefused(Forged(kSizes.SegmentBytes(), kAllSeals, false), "only 0 are allocated");
}

TEST(ShmSegmentTest, PagesBehindTheEndDoNotStandForThoseBeforeIt) {
  const auto bytes = static_cast<off_t>(kSizes.SegmentBytes());
  UniqueFd fd(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), bytes), 0);
  ASSERT_EQ(fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, bytes, bytes), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kAllSeals), 0);
  ExpectRefused(std::move(fd), "only 0 are allocated");
}

TEST(ShmSegmentTest, ADescriptorForReadingOrForWritingAloneIsRefused) {
  const UniqueFd fd = Forged(kSizes.SegmentBytes(), kAllSeals, true);
  const std::string path = absl::StrCat("/proc/self/fd/", fd.get());
  for (const int mode : {O_RDONLY, O_WRONLY}) {
    ExpectRefused(UniqueFd(open(path.c_str(), mode | O_CLOEXEC)), "not open for reading and");
  }
}

TEST(ShmSegmentTest, AFileOfHugePagesIsRefused) {
  UniqueFd fd(memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd.valid()) GTEST_SKIP() << "this system has no such files";
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kAllSeals), 0);
  ExpectRefused(std::move(fd), "huge pages");
}

// Makes a segment in a child process, for which `limit` may be set, and says why it cannot.
void MakeUnder(__rlimit_resource resource, rlim_t limit) {
  const rlimit both = {limit, limit};
  if (setrlimit(resource, &both) != 0) _exit(1);
  const absl::Status status = OwnSegment::Create(RingSizes(), *Account()).status();
  std::cerr << status << std::endl;
  _exit(absl::IsResourceExhausted(status) ? 0 : 2);
}

class ShmSegmentDeathTest : public testing::Test {
 protected:
  ShmSegmentDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ShmSegmentDeathTest, ALimitThatIsReachedIsNamed) {
  const testing::ExitedWithCode exits(0);
  EXPECT_EXIT(MakeUnder(RLIMIT_FSIZE, 1'000'000), exits, "1000000 .RLIMIT_FSIZE.*ulimit -f");
#ifndef __SANITIZE_ADDRESS__  // with it comes UBSan, which looks at objects through a pipe
  EXPECT_EXIT(MakeUnder(RLIMIT_NOFILE, 3), exits, "memfd_create.*: 3 .RLIMIT_NOFILE.*ulimit -n");
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which take a lot of it
  EXPECT_EXIT(MakeUnder(RLIMIT_AS, 1'000'000), exits, "mmap.*: 1000000 bytes .RLIMIT_AS");
#endif
}

TEST(ShmSegmentTest, RingsOfOddSizesAreRefused) {
  for (const RingSizes& sizes :
       {RingSizes{4095, 8192, 1}, RingSizes{4096, 2048, 1}, RingSizes{4096, size_t{1} << 40, 1},
        RingSizes{4096, 4096, 0}, RingSizes{4096, 4096, 17}}) {
    EXPECT_EQ(PeerSegment::Map(sizes, UniqueFd()).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(OwnSegment::Create(sizes, *Account()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(ShmSegmentTest, ASegmentIsChargedUntilItIsGone) {
  const auto account = Account(kSizes.SegmentBytes());
  auto own = OwnSegment::Create(kSizes, *account);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(OwnSegment::Create(kSizes, *account).status().code(),
            absl::StatusCode::kResourceExhausted);
  own->reset();
  EXPECT_EQ(account->used_bytes(), 0u);
}

}  // namespace
}  // namespace psd::carrier
