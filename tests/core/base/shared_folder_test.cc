// The setting that names a folder for shared memory.

#include "core/base/shared_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"

namespace psd {
namespace {

TEST(SharedFolderTest, IsAShortAbsolutePathOrNone) {
  for (const std::string& good :
       {std::string(), std::string("/run/psd"), std::string(kMaxSharedFolderBytes, '/')})
    EXPECT_TRUE(CheckSharedFolder(good).ok()) << good;
  for (const std::string& bad :
       {std::string("run/psd"), std::string(kMaxSharedFolderBytes + 1, '/'), std::string("/a\n")})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckSharedFolder(bad))) << bad;
  const std::string why(CheckSharedFolder("/a\n").message());
  EXPECT_TRUE(absl::StrContains(why, "control characters")) << why;
}

TEST(SharedFolderTest, BelongsToThisUserAlone) {
  std::string path = "/tmp/psd_own_XXXXXX";
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  EXPECT_TRUE(CheckSharedFolderIsOwn(path).ok()) << "mkdtemp makes it so";
  for (const mode_t mode : {0720, 0702, 0777}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const absl::Status refused = CheckSharedFolderIsOwn(path);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), path)) << refused;
  }
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  EXPECT_TRUE(CheckSharedFolderIsOwn(path).ok()) << "others may only look";
  ASSERT_EQ(rmdir(path.c_str()), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckSharedFolderIsOwn(path))) << "it is gone";
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckSharedFolderIsOwn("/proc/self/status")))
      << "it is a file";
}

}  // namespace
}  // namespace psd
