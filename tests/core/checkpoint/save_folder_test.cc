#include "core/checkpoint/save_folder.h"

#include <stdlib.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/checkpoint/index_codec.h"
#include "core/checkpoint/save_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd::checkpoint {
namespace {

using ::testing::HasSubstr;

const TensorSpec kTensor{"w", DType::kF32, Shape{4}};

// Makes a save of one parameter whose elements are `fill`.
absl::Status Save(std::shared_ptr<FileSystem> files, const std::string& dir,
                  const std::string& name, const std::string& fill) {
  PSD_ASSIGN_OR_RETURN(auto save, SaveFolder::Begin(std::move(files), dir, name, "u-" + name, 16));
  PSD_ASSIGN_OR_RETURN(auto file, save->Create({"w.safetensors", {kTensor}}));
  PSD_RETURN_IF_ERROR(file->AppendBytes(fill));
  CheckpointIndex index;
  PSD_ASSIGN_OR_RETURN(SavedFile saved, file->Finish());
  index.files.push_back(saved);
  SavedValue value;
  value.owner = "owner0";
  value.name = "w";
  value.shape = Shape{4};
  value.file = "w.safetensors";
  index.values.push_back(value);
  return save->Publish(index).status();
}

// Verifies the save that is found in `dir`, and returns its elements.
absl::StatusOr<std::string> Load(std::shared_ptr<FileSystem> files, const std::string& dir) {
  PSD_ASSIGN_OR_RETURN(std::string folder, FindSave(*files, dir));
  PSD_ASSIGN_OR_RETURN(auto reader, SaveReader::Open(std::move(files), folder));
  PSD_RETURN_IF_ERROR(reader->Verify(nullptr));
  PSD_ASSIGN_OR_RETURN(Tensor tensor, reader->ReadValue(reader->index().values[0]));
  return std::string(tensor.AsBuffer().view());
}

const std::string kOld(16, 'o');
const std::string kNew(16, 'n');

// The disk is full at any moment, also while `latest` is written.
TEST(SaveFolder, ASaveThatFailsLeavesNothingThatLooksLikeOne) {
  for (uint64_t more = 0;; ++more) {
    auto disk = std::make_shared<FakeFileSystem>();
    ASSERT_TRUE(Save(disk, "d", "1", kOld).ok());
    disk->capacity = 0;
    for (const auto& [path, bytes] : disk->files()) disk->capacity += bytes.size();
    disk->capacity += more;
    const absl::Status saved = Save(disk, "d", "2", kNew);
    if (saved.ok()) return;
    EXPECT_EQ(*Load(disk, "d"), kOld);
    EXPECT_FALSE(Load(disk, "d/2").ok()) << more << " bytes: " << saved;
    EXPECT_EQ(*disk->List("d"), (std::vector<std::string>{"1", "latest"})) << more;
  }
}

TEST(SaveFolder, TheLastSaveIsTheOneThatIsMeant) {
  auto disk = std::make_shared<FakeFileSystem>();
  ASSERT_TRUE(Save(disk, "d", "1", kOld).ok());
  EXPECT_EQ(*Load(disk, "d"), kOld);
  ASSERT_TRUE(Save(disk, "d", "2", kNew).ok());
  EXPECT_EQ(*Load(disk, "d"), kNew);
  EXPECT_EQ(*Load(disk, "d/1"), kOld) << "a save can be named itself";
  EXPECT_EQ(disk->files().size(), 5u);
}

TEST(SaveFolder, OnRealFiles) {
  std::string dir = ::testing::TempDir() + "/savesXXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  auto disk = FileSystem::Posix();
  ASSERT_TRUE(Save(disk, dir + "/a/b", "1", kOld).ok());
  const absl::Status saved = Save(disk, dir + "/a/b", "2", kNew);
  ASSERT_TRUE(saved.ok()) << saved;
  EXPECT_EQ(*Load(disk, dir + "/a/b"), kNew);
  EXPECT_EQ(*disk->List(dir + "/a/b"), (std::vector<std::string>{"1", "2", "latest"}));

  auto held = SaveFolder::Begin(disk, dir + "/a/b", "3", "x", 0);
  ASSERT_TRUE(held.ok()) << held.status();
  const absl::Status second = Save(disk, dir + "/a/b", "4", kNew);
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("under way"));
  EXPECT_EQ(SaveFolder::Begin(disk, dir + "/a", "3", "x", UINT64_MAX).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Save(disk, "/proc/none", "1", kOld).code(), absl::StatusCode::kNotFound);
  held->reset();
  EXPECT_TRUE(disk->Remove(dir).ok());
}

// After a power failure there is no `latest` without its save, and no save in a lost folder.
TEST(SaveFolder, NamesReachTheDiskInTheirOrder) {
  auto disk = std::make_shared<FakeFileSystem>();
  ASSERT_TRUE(Save(disk, "a/b", "1", kOld).ok());
  const std::string unfinished = "a/b/.saving-u-1";
  EXPECT_EQ(disk->name_changes(),
            (std::vector<std::string>{"make a/b", "sync a", "sync .", "make " + unfinished,
                                      "sync " + unfinished, "rename " + unfinished + " to a/b/1",
                                      "sync a/b", "rename " + unfinished + " to a/b/latest",
                                      "sync a/b"}));
  ASSERT_TRUE(Save(disk, "a/b", "2", kNew).ok());
  EXPECT_EQ(disk->name_changes()[9 + 1], "make a/b/.saving-u-2") << "no parents are new now";
}

TEST(SaveFolder, NamesAreTakenOnceAndPlain) {
  auto disk = std::make_shared<FakeFileSystem>();
  ASSERT_TRUE(Save(disk, "d", "1", kOld).ok());
  EXPECT_EQ(Save(disk, "d", "1", kNew).code(), absl::StatusCode::kAlreadyExists);
  for (const char* name : {"", "..", "a/b", ".x", "latest", "a b"})
    EXPECT_EQ(Save(disk, "d", name, kNew).code(), absl::StatusCode::kInvalidArgument) << name;
  EXPECT_EQ(*Load(disk, "d"), kOld);
}

// Wherever the process dies, the folder holds the old save or the new one, and the next save works
// and removes what was left.
TEST(SaveFolder, DiesAnywhere) {
  int before = 0;
  for (int changes = 0;; ++changes) {
    auto disk = std::make_shared<FakeFileSystem>();
    ASSERT_TRUE(Save(disk, "d", "1", kOld).ok());
    disk->changes_left = changes;
    const absl::Status died = Save(disk, "d", "2", kNew);
    disk->changes_left = 1 << 30;
    auto loaded = Load(disk, "d");
    ASSERT_TRUE(loaded.ok()) << loaded.status() << " after " << changes << " changes";
    if (*loaded == kOld) ++before;
    EXPECT_EQ(*loaded, died.ok() ? kNew : kOld);
    ASSERT_TRUE(Save(disk, "d", "3", kNew).ok());
    EXPECT_EQ(*Load(disk, "d"), kNew);
    for (const auto& [path, bytes] : disk->files())
      EXPECT_THAT(path, ::testing::Not(HasSubstr(std::string(kUnfinishedPrefix))));
    if (died.ok()) break;
  }
  EXPECT_GT(before, 5);
}

TEST(SaveFolder, DiskFull) {
  auto disk = std::make_shared<FakeFileSystem>();
  ASSERT_TRUE(Save(disk, "d", "1", kOld).ok());
  size_t used = 0;
  for (const auto& [path, bytes] : disk->files()) used += bytes.size();
  disk->capacity = used + 8;
  const absl::Status told = Save(disk, "d", "2", kNew);
  EXPECT_EQ(told.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(told.message()), HasSubstr("needs 16 bytes"));
  // The disk becomes full while the save is written.
  for (size_t room = 16; room < used; room += 8) {
    disk->capacity = used + room;
    EXPECT_EQ(Save(disk, "d", "2", kNew).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(*Load(disk, "d"), kOld);
    EXPECT_EQ(disk->files().size(), 3u) << "what was written is removed";
  }
}

TEST(SaveReader, DamageIsFoundBeforeAnythingIsUsed) {
  auto disk = std::make_shared<FakeFileSystem>();
  ASSERT_TRUE(Save(disk, "d", "1", kOld).ok());
  const std::string path = "d/1/w.safetensors";
  const std::string good = disk->files().at(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    disk->Put(path, bad);
    EXPECT_FALSE(Load(disk, "d").ok()) << "byte " << i;
  }
  std::string bad = good;
  bad.back() = '!';
  disk->Put(path, bad);
  absl::Status damaged = Load(disk, "d").status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr(path + " is damaged"));
  for (size_t size = 0; size < good.size(); ++size) {
    disk->Put(path, good.substr(0, size));
    EXPECT_EQ(Load(disk, "d").status().code(), absl::StatusCode::kDataLoss);
  }
  disk->Put(path, good);
  EXPECT_TRUE(Load(disk, "d").ok());
  ASSERT_TRUE(disk->Remove(path).ok());
  EXPECT_THAT(std::string(Load(disk, "d").status().message()), HasSubstr("missing"));
}

TEST(SaveReader, AnIndexThatDoesNotFitItsFiles) {
  auto disk = std::make_shared<FakeFileSystem>();
  ASSERT_TRUE(Save(disk, "d", "1", kOld).ok());
  auto index = ReadIndex(*disk, "d/1");
  ASSERT_TRUE(index.ok()) << index.status();
  index->values[0].name = "v";
  disk->Put("d/1/index.json", EncodeIndex(*index));
  const absl::Status opened = Load(disk, "d").status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(opened.message()), HasSubstr("should hold 'v' as F32[4]"));
}

TEST(SaveReader, CanBeStopped) {
  auto disk = std::make_shared<FakeFileSystem>();
  ASSERT_TRUE(Save(disk, "d", "1", kOld).ok());
  auto reader = SaveReader::Open(disk, "d/1");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->Verify([](uint64_t) { return false; }).code(), absl::StatusCode::kCancelled);
}

TEST(FindSave, WhatIsNoSave) {
  auto disk = std::make_shared<FakeFileSystem>();
  EXPECT_EQ(FindSave(*disk, "d").status().code(), absl::StatusCode::kNotFound);
  disk->Put("d/latest", "../elsewhere\n");
  EXPECT_EQ(FindSave(*disk, "d").status().code(), absl::StatusCode::kInvalidArgument);
  disk->Put("d/latest", "1\n");
  EXPECT_EQ(FindSave(*disk, "d").status().code(), absl::StatusCode::kInvalidArgument);
  disk->Put("d/latest", std::string(1000, 'x'));
  EXPECT_EQ(FindSave(*disk, "d").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::checkpoint
