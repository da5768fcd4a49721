#include "tests/core/checkpoint/fake_file_system.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::checkpoint {
namespace {

class Readable : public ReadableFile {
 public:
  explicit Readable(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  absl::Status Read(uint64_t offset, size_t bytes, std::byte* to) const override {
    if (offset + bytes > bytes_.size()) return absl::DataLossError("ends too early");
    std::memcpy(to, bytes_.data() + offset, bytes);
    return absl::OkStatus();
  }

 private:
  const std::string bytes_;
};

}  // namespace

class FakeFileSystem::File : public WritableFile {
 public:
  File(FakeFileSystem& disk, std::string path) : disk_(disk), path_(std::move(path)) {}
  absl::Status Append(absl::string_view bytes) override { return disk_.Append(path_, bytes); }
  absl::Status Sync() override { return absl::OkStatus(); }

 private:
  FakeFileSystem& disk_;
  const std::string path_;
};

class FakeFileSystem::Held : public FolderLock {
 public:
  Held(FakeFileSystem& disk, std::string folder) : disk_(disk), folder_(std::move(folder)) {}
  ~Held() override {
    MutexLock lock(disk_.mutex_);
    disk_.locked_.erase(folder_);
  }

 private:
  FakeFileSystem& disk_;
  const std::string folder_;
};

absl::Status FakeFileSystem::Change() {
  if (changes_left-- > 0) return absl::OkStatus();
  return absl::UnavailableError("killed");
}

absl::StatusOr<std::unique_ptr<WritableFile>> FakeFileSystem::Create(const std::string& path) {
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(Change());
  if (!files_.emplace(path, "").second) return absl::AlreadyExistsError(path);
  return std::make_unique<File>(*this, path);
}

absl::Status FakeFileSystem::Append(const std::string& path, absl::string_view bytes) {
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(Change());
  uint64_t used = bytes.size();
  for (const auto& [name, content] : files_) used += content.size();
  if (used > capacity) return absl::ResourceExhaustedError(absl::StrCat(path, ": disk full"));
  absl::StrAppend(&files_[path], bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FakeFileSystem::Open(const std::string& path) {
  MutexLock lock(mutex_);
  auto found = files_.find(path);
  if (found == files_.end()) return absl::NotFoundError(path);
  return std::make_unique<Readable>(found->second);
}

absl::Status FakeFileSystem::MakeFolder(const std::string& path) {
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(Change());
  folders_.insert(path);
  name_changes_.push_back(absl::StrCat("make ", path));
  return absl::OkStatus();
}

absl::Status FakeFileSystem::SyncFolder(const std::string& folder) {
  MutexLock lock(mutex_);
  name_changes_.push_back(absl::StrCat("sync ", folder));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> FakeFileSystem::List(const std::string& folder) {
  MutexLock lock(mutex_);
  std::set<std::string> names;
  const auto add = [&](const std::string& path) {
    if (!absl::StartsWith(path, folder + "/")) return;
    const std::string rest = path.substr(folder.size() + 1);
    names.insert(rest.substr(0, rest.find('/')));
  };
  for (const auto& [path, content] : files_) add(path);
  for (const std::string& path : folders_) add(path);
  if (names.empty() && folders_.count(folder) == 0) return absl::NotFoundError(folder);
  return std::vector<std::string>(names.begin(), names.end());
}

absl::Status FakeFileSystem::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(Change());
  std::map<std::string, std::string> files;
  for (auto& [path, content] : files_) {
    const bool moves = path == from || absl::StartsWith(path, from + "/");
    if (moves) files[to + path.substr(from.size())] = content;
    if (!moves && path != to) files.emplace(path, content);
  }
  files_ = std::move(files);
  if (folders_.erase(from) > 0) folders_.insert(to);
  name_changes_.push_back(absl::StrCat("rename ", from, " to ", to));
  return absl::OkStatus();
}

absl::Status FakeFileSystem::Remove(const std::string& path) {
  MutexLock lock(mutex_);
  PSD_RETURN_IF_ERROR(Change());
  folders_.erase(path);
  for (auto it = files_.begin(); it != files_.end();) {
    const bool goes = it->first == path || absl::StartsWith(it->first, path + "/");
    it = goes ? files_.erase(it) : std::next(it);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FakeFileSystem::FreeBytes(const std::string&) {
  MutexLock lock(mutex_);
  uint64_t used = 0;
  for (const auto& [name, content] : files_) used += content.size();
  return claims_free.value_or(capacity - used);
}

absl::StatusOr<std::unique_ptr<FolderLock>> FakeFileSystem::Lock(const std::string& folder) {
  MutexLock lock(mutex_);
  if (!locked_.insert(folder).second)
    return absl::FailedPreconditionError(absl::StrCat("another save into ", folder));
  return std::make_unique<Held>(*this, folder);
}

std::map<std::string, std::string> FakeFileSystem::files() const {
  MutexLock lock(mutex_);
  return files_;
}

std::vector<std::string> FakeFileSystem::name_changes() const {
  MutexLock lock(mutex_);
  return name_changes_;
}

void FakeFileSystem::Put(const std::string& path, std::string bytes) {
  MutexLock lock(mutex_);
  files_[path] = std::move(bytes);
}

}  // namespace psd::checkpoint
