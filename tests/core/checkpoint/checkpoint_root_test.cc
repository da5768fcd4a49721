#include "core/checkpoint/checkpoint_root.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint/save_names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::checkpoint {
namespace {

using ::testing::HasSubstr;

const std::string kToken = "0123456789abcdef0123456789abcdef";

// The parameter says whether openat2 is used, which not every system has.
class CheckpointRootTest : public ::testing::TestWithParam<bool> {
 protected:
  CheckpointRootTest() {
    if (mkdtemp(dir_.data()) == nullptr) std::abort();
    dir_ = std::filesystem::canonical(dir_).string();
    std::filesystem::create_directories(root_path());
    CheckpointRoot::Options options;
    options.openat2 = GetParam();
    root_ = *CheckpointRoot::Open(root_path(), options);
  }
  ~CheckpointRootTest() override { std::filesystem::remove_all(dir_); }

  std::string root_path() const { return dir_ + "/root"; }
  // Makes a folder that holds a token.
  std::string MakeSave(const std::string& path, const std::string& token = kToken) {
    std::filesystem::create_directories(path);
    std::ofstream(absl::StrCat(path, "/", kTokenFileName)) << token;
    return path;
  }
  absl::Status Find(const std::string& path, const std::string& token = kToken) {
    return root_->Find(path, token).status();
  }

  std::string dir_ = ::testing::TempDir() + "/rootXXXXXX";
  std::shared_ptr<CheckpointRoot> root_;
};

INSTANTIATE_TEST_SUITE_P(Ways, CheckpointRootTest, ::testing::Values(true, false));

TEST_P(CheckpointRootTest, FilesInTheFolderThatWasMeant) {
  for (const std::string& path : {root_path() + "/.saving-1", root_path() + "/a/b c/.saving-1"}) {
    MakeSave(path);
    auto folder = root_->Find(path, kToken);
    ASSERT_TRUE(folder.ok()) << folder.status();
    auto file = (*folder)->Create("values-a.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append("hello").ok());
    ASSERT_TRUE((*file)->Sync().ok());
    ASSERT_TRUE((*folder)->Sync().ok());
    EXPECT_EQ(std::filesystem::file_size(path + "/values-a.safetensors"), 5u);
    EXPECT_EQ((*folder)->Create("values-a.safetensors").status().code(),
              absl::StatusCode::kAlreadyExists);
    EXPECT_TRUE((*folder)->Remove("values-a.safetensors").ok());
    EXPECT_TRUE((*folder)->Remove("values-a.safetensors").ok());
    EXPECT_FALSE(std::filesystem::exists(path + "/values-a.safetensors"));
  }
}

TEST_P(CheckpointRootTest, NothingIsOverwrittenOrFollowed) {
  const std::string path = MakeSave(root_path() + "/.saving-1");
  std::ofstream(dir_ + "/secret") << "secret";
  std::filesystem::create_symlink(dir_ + "/secret", path + "/values-a.safetensors");
  std::filesystem::create_symlink(dir_ + "/new", path + "/state-a-0.safetensors");
  auto folder = root_->Find(path, kToken);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_FALSE((*folder)->Create("values-a.safetensors").ok());
  EXPECT_FALSE((*folder)->Create("state-a-0.safetensors").ok());
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/new"));
  EXPECT_EQ(std::filesystem::file_size(dir_ + "/secret"), 6u);
  for (const char* name : {"../x", "a/b", ".x", "", "..", "/etc/x"}) {
    EXPECT_EQ((*folder)->Create(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_FALSE((*folder)->Remove(name).ok()) << name;
  }
}

TEST_P(CheckpointRootTest, PathsThatLeadElsewhere) {
  MakeSave(dir_ + "/outside/.saving-1");
  MakeSave(root_path() + "/in/.saving-1");
  MakeSave(root_path() + "/plain");
  MakeSave(dir_ + "/root-twin/.saving-1");
  std::filesystem::create_symlink(dir_ + "/outside", root_path() + "/link");
  std::filesystem::create_symlink(root_path() + "/in", root_path() + "/inner");
  std::filesystem::create_symlink(dir_ + "/outside/.saving-1", root_path() + "/.saving-2");
  std::ofstream(root_path() + "/.saving-3") << kToken;
  ASSERT_TRUE(Find(root_path() + "/in/.saving-1").ok());
  for (const std::string& path : {std::string(),
                                  std::string("/"),
                                  std::string(".saving-1"),
                                  std::string("in/.saving-1"),
                                  dir_ + "/outside/.saving-1",
                                  dir_ + "/root-twin/.saving-1",
                                  root_path(),
                                  root_path() + "/",
                                  root_path() + "/../outside/.saving-1",
                                  root_path() + "/in/../../outside/.saving-1",
                                  root_path() + "//in/.saving-1",
                                  root_path() + "/./in/.saving-1",
                                  root_path() + "/in/.saving-1/",
                                  root_path() + "/in/.saving-1/.",
                                  root_path() + "/plain",
                                  root_path() + "/link/.saving-1",
                                  root_path() + "/inner/.saving-1",
                                  root_path() + "/.saving-2",
                                  root_path() + "/.saving-3",
                                  root_path() + "/none/.saving-1",
                                  root_path() + "/in/.saving-1" + std::string(1, '\0') + "x",
                                  root_path() + "/" + std::string(300, 'x') + "/.saving-1",
                                  root_path() + "/.saving-" + std::string(300, 'x'),
                                  root_path() + "/" + std::string(5000, 'x') + "/.saving-1",
                                  std::string("/proc/self/cwd/.saving-1")}) {
    EXPECT_EQ(Find(path).code(), absl::StatusCode::kFailedPrecondition) << path.substr(0, 200);
  }
}

TEST_P(CheckpointRootTest, AFolderOfThatNameIsNotEnough) {
  const std::string path = MakeSave(root_path() + "/.saving-1");
  const std::string token = absl::StrCat(path, "/", kTokenFileName);
  const absl::Status other = Find(path, "f" + kToken.substr(1));
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.message()), HasSubstr("is another folder here"));
  EXPECT_FALSE(Find(path, "").ok());
  EXPECT_FALSE(Find(path, kToken.substr(1)).ok());
  EXPECT_FALSE(Find(path, kToken + "0").ok());
  for (const std::string& content : {std::string(), kToken.substr(1), kToken + "\n"}) {
    std::ofstream(token) << content;
    EXPECT_FALSE(Find(path).ok()) << content;
    EXPECT_FALSE(Find(path, content).ok()) << content;
  }
  std::filesystem::remove(token);
  EXPECT_FALSE(Find(path).ok());
  std::ofstream(dir_ + "/elsewhere") << kToken;
  std::filesystem::create_symlink(dir_ + "/elsewhere", token);
  EXPECT_FALSE(Find(path).ok()) << "a link is not followed";
  std::filesystem::remove(token);
  ASSERT_EQ(mkfifo(token.c_str(), 0600), 0);
  EXPECT_FALSE(Find(path).ok()) << "a pipe is not waited for";
}

TEST(CheckpointRoot, RootsThatAreNone) {
  std::string dir = ::testing::TempDir() + "/rootXXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  std::ofstream(dir + "/file") << "x";
  EXPECT_EQ(CheckpointRoot::Open("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckpointRoot::Open("saves").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckpointRoot::Open(dir + "/none").status().code(), absl::StatusCode::kNotFound);
  const absl::Status file = CheckpointRoot::Open(dir + "/file").status();
  EXPECT_EQ(file.code(), absl::StatusCode::kInvalidArgument) << file;
  if (geteuid() != 0) {  // root may write everywhere
    std::filesystem::create_directory(dir + "/read_only");
    ASSERT_EQ(chmod((dir + "/read_only").c_str(), 0500), 0);
    EXPECT_EQ(CheckpointRoot::Open(dir + "/read_only").status().code(),
              absl::StatusCode::kPermissionDenied);
  }
  std::filesystem::create_symlink(dir, dir + "/link");
  EXPECT_TRUE(CheckpointRoot::Open(dir + "/link").ok()) << "the operator may use links";
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace psd::checkpoint
