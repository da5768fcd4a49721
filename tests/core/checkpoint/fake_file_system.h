#pragma once

// A disk in memory: it can be full, and it can stop, with the process that used it, at any
// operation that changes it.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/checkpoint/file_system.h"

namespace psd::checkpoint {

// Thread-safe. Folders are prefixes of paths.
class FakeFileSystem : public FileSystem {
 public:
  // Bytes that all files may have together.
  uint64_t capacity = UINT64_MAX;
  // What FreeBytes says, if it lies.
  std::optional<uint64_t> claims_free;
  // Changes that still succeed; all later ones fail, as they would for a process that was killed.
  int changes_left = 1 << 30;

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  absl::StatusOr<std::string> RealPath(const std::string& path) override { return path; }
  absl::Status MakeFolder(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncFolder(const std::string& folder) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string&) override;
  absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string& folder) override;

  std::map<std::string, std::string> files() const PSD_EXCLUDES(mutex_);
  void Put(const std::string& path, std::string bytes) PSD_EXCLUDES(mutex_);
  // What was done to names, in order: "make d", "rename d/x to d/y", "sync d".
  std::vector<std::string> name_changes() const PSD_EXCLUDES(mutex_);

 private:
  class File;
  class Held;
  absl::Status Change() PSD_REQUIRES(mutex_);
  absl::Status Append(const std::string& path, absl::string_view bytes) PSD_EXCLUDES(mutex_);

  mutable Mutex mutex_;  // leaf
  std::map<std::string, std::string> files_ PSD_GUARDED_BY(mutex_);
  std::set<std::string> folders_ PSD_GUARDED_BY(mutex_);
  std::set<std::string> locked_ PSD_GUARDED_BY(mutex_);
  std::vector<std::string> name_changes_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::checkpoint
