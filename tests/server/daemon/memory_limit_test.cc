#include "server/daemon/memory_limit.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::server {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// Provides a /proc and a /sys in a temporary folder.
class MemoryLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "/memory_limit_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    root_ = folder;
    Write("/proc/meminfo", "MemFree: 1 kB\nMemTotal:       16777216 kB\nMemAvailable: 2 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  uint64_t Limit() const { return FindMemoryLimit(root_).bytes; }

  std::string root_;
};

TEST_F(MemoryLimitTest, TheMachineWhereNoGroupSaysLess) {
  EXPECT_EQ(Limit(), 16 * kGiB);
  EXPECT_EQ(FindMemoryLimit(root_).source, "the machine's memory");
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/memory.max", "max\n");
  EXPECT_EQ(Limit(), 16 * kGiB);
}

TEST_F(MemoryLimitTest, EveryAncestorOfVersion2Counts) {
  Write("/proc/self/cgroup", "0::/a/b:c/d\n");
  Write("/sys/fs/cgroup/a/memory.max", "4294967296\n");
  Write("/sys/fs/cgroup/a/b:c/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b:c/d/memory.max", "8589934592\n");
  EXPECT_EQ(Limit(), 4 * kGiB);
  EXPECT_EQ(FindMemoryLimit(root_).source, "the limit of control group /sys/fs/cgroup/a");
  Write("/sys/fs/cgroup/a/b:c/d/memory.max", "1073741824\n");
  EXPECT_EQ(Limit(), kGiB);
}

TEST_F(MemoryLimitTest, EveryAncestorOfVersion1Counts) {
  Write("/proc/self/cgroup", "12:cpu,memory:/a/b\n3:pids:/p\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "3221225472\n");
  Write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/p/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(Limit(), 3 * kGiB);
}

TEST_F(MemoryLimitTest, BothVersionsAtOnce) {
  Write("/proc/self/cgroup", "4:memory:/one\n0::/two\n");
  Write("/sys/fs/cgroup/memory/one/memory.limit_in_bytes", "6442450944\n");
  Write("/sys/fs/cgroup/unified/two/memory.max", "5368709120\n");
  EXPECT_EQ(Limit(), 5 * kGiB);
}

TEST_F(MemoryLimitTest, InAContainerThePathMayBeTheHosts) {
  Write("/proc/self/cgroup", "0::/../../kubepods/pod7\n");
  Write("/sys/fs/cgroup/memory.max", "2147483648\n");
  EXPECT_EQ(Limit(), 2 * kGiB);
}

TEST_F(MemoryLimitTest, AHiddenMeminfoIsAskedOfTheSystem) {
  std::filesystem::remove(root_ + "/proc/meminfo");
  const MemoryLimit limit = FindMemoryLimit(root_);
  EXPECT_GT(limit.bytes, 0u);
  EXPECT_LT(limit.bytes, UINT64_MAX);
  EXPECT_THAT(limit.source, HasSubstr("machine"));
}

TEST(DefaultMemoryBudget, IsFourFifthsAmongTheDaemons) {
  EXPECT_EQ(DefaultMemoryBudget({10 * kGiB, ""}, 1), 8 * kGiB);
  EXPECT_EQ(DefaultMemoryBudget({10 * kGiB, ""}, 4), 2 * kGiB);
}
TEST(DefaultMemoryBudget, LeavesRoomForTheProgramsOfSmallContainers) {
  EXPECT_EQ(DefaultMemoryBudget({200 * kMiB, ""}, 1), 136 * kMiB);
  EXPECT_EQ(DefaultMemoryBudget({400 * kMiB, ""}, 2), 136 * kMiB);
  EXPECT_EQ(DefaultMemoryBudget({100 * kMiB, ""}, 1), 50 * kMiB);
}

}  // namespace
}  // namespace psd::server
