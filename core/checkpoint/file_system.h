#pragma once

// The disk as checkpoints see it: a seam, so that a test can fill it up, damage it or stop it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::checkpoint {

// Memory and amounts that suit Append best are multiples of this.
inline constexpr size_t kDirectAlignment = 4096;

// A new file, written from its beginning to its end. Thread-compatible. Destroying it closes it.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // As long as every amount and its address are multiples of kDirectAlignment, bytes go from the
  // caller's memory to the disk where the system can do that; all after it is copied.
  // Errors: RESOURCE_EXHAUSTED when the disk is full or a quota reached, naming file and size.
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Done when everything appended survives a power cut.
  virtual absl::Status Sync() = 0;
};

// An existing file. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t size() const = 0;
  // Exactly `bytes` bytes from `offset`. Errors: DATA_LOSS when the file ends before that.
  virtual absl::Status Read(uint64_t offset, size_t bytes, std::byte* to) const = 0;
};

// Held by one process at a time; given up when it is destroyed, and by the system when the process
// dies.
class FolderLock {
 public:
  virtual ~FolderLock() = default;
};

// Paths are the process's. Thread-safe. Errors, everywhere: NOT_FOUND, PERMISSION_DENIED,
// RESOURCE_EXHAUSTED (full), else UNAVAILABLE; all name the path.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static std::shared_ptr<FileSystem> Posix();

  // Errors: ALREADY_EXISTS.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  // Of something that exists: absolute, without symbolic links, "." and "..".
  virtual absl::StatusOr<std::string> RealPath(const std::string& path) = 0;
  // With its parents; one that exists is no error.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Names in a folder, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
  // Replaces what is called `to`, if it is a file or an empty folder.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // A file, or a folder with all that is in it. What is gone already is no error.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Names in `folder` survive a power cut.
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
  // Bytes that can still be written there.
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& folder) = 0;
  // Errors: FAILED_PRECONDITION when another holds it.
  virtual absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string& folder) = 0;
};

// The whole of a small file. Errors: INVALID_ARGUMENT when it has more than `max_bytes`.
absl::StatusOr<std::string> ReadWhole(FileSystem& files, const std::string& path,
                                      uint64_t max_bytes);

}  // namespace psd::checkpoint
