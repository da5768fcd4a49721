#include "core/checkpoint/file_system.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace psd::checkpoint {
namespace {

class FileSystemTest : public ::testing::Test {
 protected:
  FileSystemTest() {
    if (mkdtemp(dir_.data()) == nullptr) std::abort();
  }
  ~FileSystemTest() override { files_->Remove(dir_).IgnoreError(); }

  absl::Status WriteParts(const std::string& path, const std::vector<absl::string_view>& parts) {
    PSD_ASSIGN_OR_RETURN(auto file, files_->Create(path));
    for (absl::string_view part : parts) PSD_RETURN_IF_ERROR(file->Append(part));
    return file->Sync();
  }

  const std::shared_ptr<FileSystem> files_ = FileSystem::Posix();
  std::string dir_ = ::testing::TempDir() + "/filesXXXXXX";
};

// The file holds the written bytes, whether or not their amounts and addresses suit direct writing.
TEST_F(FileSystemTest, AnyAmountsFromAnyAddresses) {
  auto block = NewHeapAllocator()->Allocate(size_t{4} << 20);
  ASSERT_TRUE(block.ok()) << block.status();
  for (size_t i = 0; i < (*block)->size(); ++i)
    (*block)->data()[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  const absl::string_view all = Buffer(*block).view();
  const size_t page = kDirectAlignment;
  const std::vector<std::vector<absl::string_view>> mixtures = {
      {},
      {all},
      {all.substr(0, 2 * page), all.substr(2 * page, 5)},
      {all.substr(0, 7), all.substr(page, 3 * page)},
      {all.substr(0, page), all.substr(1, page), all.substr(page, page)},
      {all.substr(0, page), "", all.substr(page, 4 * page), all.substr(3), all},
  };
  for (size_t i = 0; i < mixtures.size(); ++i) {
    const std::string path = dir_ + "/" + std::to_string(i);
    std::string expected;
    for (absl::string_view part : mixtures[i]) expected += std::string(part);
    const absl::Status written = WriteParts(path, mixtures[i]);
    ASSERT_TRUE(written.ok()) << written;
    auto read = ReadWhole(*files_, path, uint64_t{1} << 30);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == expected) << "mixture " << i;
  }
}

TEST_F(FileSystemTest, ErrorsNameThePath) {
  const std::string path = dir_ + "/file";
  ASSERT_TRUE(WriteParts(path, {"x"}).ok());
  EXPECT_EQ(files_->Create(path).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(files_->Open(dir_ + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(files_->Open(dir_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadWhole(*files_, path, 0).status().code(), absl::StatusCode::kInvalidArgument);
  auto file = files_->Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::byte two[2];
  const absl::Status beyond = (*file)->Read(0, 2, two);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(beyond.message().find(path), std::string::npos);
  // Opening a pipe is refused, and does not block.
  ASSERT_EQ(mkfifo((dir_ + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(files_->Open(dir_ + "/pipe").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::checkpoint
