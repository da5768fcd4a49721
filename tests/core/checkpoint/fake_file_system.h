#pragma once

// A file system in memory. It can be full, and it can fail from any changing operation on, as if
// the process that uses it had died there.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/checkpoint/file_system.h"

namespace psd::checkpoint {

// Folders are prefixes of paths. Thread-safe.
class FakeFileSystem : public FileSystem {
 public:
  // The number of bytes that all files together may have.
  uint64_t capacity = UINT64_MAX;
  // The answer of FreeBytes, if it is to differ from the truth.
  std::optional<uint64_t> claims_free;
  // The number of changes that still succeed. All later ones fail, as if the process had been
  // killed.
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
  // The operations on names in their order, such as "make d", "rename d/x to d/y" and "sync d".
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
