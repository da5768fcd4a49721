#include "core/services/checkpoint/own_save.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "gtest/gtest.h"
#include "tests/core/checkpoint/fake_file_system.h"
#include "tests/core/checkpoint/fake_root.h"

namespace psd::services {
namespace {

using checkpoint::FakeFileSystem;
using checkpoint::FakeFolder;
using checkpoint::FileSpec;
using checkpoint::SavedFile;

const std::vector<FileSpec> kFiles = {
    {"values-a.safetensors", {{"w", DType::kF32, Shape{3}}, {"v", DType::kF32, Shape{3}}}},
    {"state-a-0.safetensors", {{"state.0.step", DType::kF32, Shape{}}}}};

class OwnSaveTest : public ::testing::Test {
 protected:
  std::unique_ptr<OwnSave> Start(std::vector<FileSpec> files = kFiles) {
    auto save = OwnSave::Start(Folder(), "a", std::move(files), NewHeapAllocator());
    EXPECT_TRUE(save.ok()) << save.status();
    return save.ok() ? *std::move(save) : nullptr;
  }
  std::unique_ptr<checkpoint::FoundFolder> Folder() {
    return std::make_unique<FakeFolder>(disk_, "d");
  }

  const std::shared_ptr<FakeFileSystem> disk_ = std::make_shared<FakeFileSystem>();
};

void Tell(const Promise<Unit>& done, const absl::Status& status) {
  done.Set(status.ok() ? absl::StatusOr<Unit>(Unit{}) : absl::StatusOr<Unit>(status));
}

// Appends a tensor filled with `value`. The future has the result.
Future<Unit> Append(OwnSave& save, uint64_t number, float value) {
  Promise<Unit> done;
  Future<Unit> future = done.future();
  const absl::Status queued = save.Do(number, [&save, value, done](const absl::Status& may) {
    Tell(done, may.ok() ? save.Append(0, *Tensor::Full(Shape{3}, DType::kF32, value)) : may);
  });
  return queued.ok() ? future : Future<Unit>::Ready(queued);
}

// Finishes the save. The future has the saved files.
Future<std::vector<SavedFile>> Finish(OwnSave& save, uint64_t number,
                                      const std::vector<StepCount>& counts) {
  Promise<std::vector<SavedFile>> done;
  auto future = done.future();
  const absl::Status queued = save.Do(number, [&save, counts, done](const absl::Status& may) {
    done.Set(may.ok() ? save.Finish(counts) : absl::StatusOr<std::vector<SavedFile>>(may));
  });
  return queued.ok() ? future : Future<std::vector<SavedFile>>::Ready(queued);
}

TEST_F(OwnSaveTest, NumbersMakeTheOrder) {
  auto save = Start();
  auto second = Append(*save, 1, 2);
  auto first = Append(*save, 0, 1);
  EXPECT_TRUE(first.Wait().ok());
  EXPECT_TRUE(second.Wait().ok());
  const auto finished = Finish(*save, 2, {{1, 7}});
  const auto& saved = finished.Wait();
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->at(0).name, "values-a.safetensors");
  const std::string bytes = disk_->files().at("d/values-a.safetensors");
  EXPECT_EQ(saved->at(0).bytes, bytes.size());
  const auto* floats = reinterpret_cast<const float*>(bytes.data() + bytes.size()) - 6;
  EXPECT_EQ(std::vector<float>(floats, floats + 6), (std::vector<float>{1, 1, 1, 2, 2, 2}));
  EXPECT_FALSE(Append(*save, 3, 1).Wait().ok()) << "it is finished";
}

TEST_F(OwnSaveTest, NumbersAreTakenOnceAndNotFarAhead) {
  auto save = Start();
  ASSERT_TRUE(Append(*save, 0, 1).Wait().ok());
  EXPECT_EQ(Append(*save, 0, 1).Wait().status().code(), absl::StatusCode::kInvalidArgument);
  const auto waiting = Append(*save, 2, 1);
  EXPECT_EQ(Append(*save, 2, 1).Wait().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Append(*save, 1 + OwnSave::kMaxAhead, 1).Wait().status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Append(*save, UINT64_MAX, 1).Wait().status().code(),
            absl::StatusCode::kInvalidArgument);
  save->Stop(absl::CancelledError("enough"));
  EXPECT_EQ(waiting.Wait().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Append(*save, 1, 1).Wait().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(OwnSaveTest, WhatWaitsIsToldWhenItEnds) {
  auto save = Start();
  const auto waiting = Append(*save, 1, 1);
  save = nullptr;
  EXPECT_EQ(waiting.Wait().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(OwnSaveTest, AnErrorEndsIt) {
  auto save = Start();
  disk_->capacity = 0;
  const auto later = Append(*save, 2, 2);
  // The file is written in the background, so this call fails or the next one does.
  Append(*save, 0, 1).Wait().IgnoreError();
  EXPECT_FALSE(Finish(*save, 1, {}).Wait().ok());
  EXPECT_FALSE(later.Wait().ok());
}

TEST_F(OwnSaveTest, OnlyItsOwnFilesAndNoneTwice) {
  const auto refused = [&](std::vector<FileSpec> files) {
    return OwnSave::Start(Folder(), "a", std::move(files), NewHeapAllocator()).status();
  };
  for (const char* name : {"values-b.safetensors", "latest", "../values-a.safetensors", ""})
    EXPECT_EQ(refused({{name, {}}}).code(), absl::StatusCode::kInvalidArgument) << name;
  EXPECT_EQ(refused(std::vector<FileSpec>(OwnSave::kMaxFiles + 1, kFiles[0])).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused({kFiles[0], kFiles[1], kFiles[0]}).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(disk_->files().empty()) << "what was made is removed";
  FileSpec twice = kFiles[0];
  twice.tensors.push_back(twice.tensors[0]);
  EXPECT_EQ(refused({kFiles[1], twice}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(disk_->files().empty());
  disk_->Put("d/values-a.safetensors", "mine");
  EXPECT_EQ(refused(kFiles).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(disk_->files().at("d/values-a.safetensors"), "mine");
}

TEST_F(OwnSaveTest, FilesThatAreNone) {
  auto save = Start();
  Promise<Unit> done;
  auto appended = done.future();
  ASSERT_TRUE(
      save->Do(0, [&save, done](const absl::Status&) { Tell(done, save->AppendBytes(2, "x")); })
          .ok());
  EXPECT_EQ(appended.Wait().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd::services
