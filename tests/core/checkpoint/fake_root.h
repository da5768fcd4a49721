#pragma once

// The checkpoint root of an owner on a file system in memory.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/checkpoint/save_names.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd::checkpoint {

class FakeFolder : public FoundFolder {
 public:
  FakeFolder(std::shared_ptr<FakeFileSystem> disk, std::string path)
      : disk_(std::move(disk)), path_(std::move(path)) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& name) override {
    return disk_->Create(absl::StrCat(path_, "/", name));
  }
  absl::Status Remove(const std::string& name) override {
    return disk_->Remove(absl::StrCat(path_, "/", name));
  }
  absl::Status Sync() override { return absl::OkStatus(); }

 private:
  const std::shared_ptr<FakeFileSystem> disk_;
  const std::string path_;
};

// A root with every folder of the file system below it.
class FakeRoot : public CheckpointRoot {
 public:
  explicit FakeRoot(std::shared_ptr<FakeFileSystem> disk) : disk_(std::move(disk)) {}

  absl::StatusOr<std::unique_ptr<FoundFolder>> Find(const std::string& path,
                                                    const std::string& token) override {
    const auto files = disk_->files();
    const auto found = files.find(absl::StrCat(path, "/", kTokenFileName));
    if (found == files.end() || found->second != token)
      return absl::FailedPreconditionError("another folder");
    return std::make_unique<FakeFolder>(disk_, path);
  }

 private:
  const std::shared_ptr<FakeFileSystem> disk_;
};

}  // namespace psd::checkpoint
