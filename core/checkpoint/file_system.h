#pragma once

// The interface through which checkpoints use the disk. Tests can implement it to fill the disk up,
// to damage files or to stop writes.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace psd::checkpoint {

// Append is fastest if the address and the number of its bytes are multiples of this.
inline constexpr size_t kDirectAlignment = 4096;

// A new file, which is written from its beginning to its end. The destructor closes it.
// Thread-compatible.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Appends bytes. As long as every address and number of bytes is a multiple of kDirectAlignment,
  // the bytes go from the caller's memory to the disk directly, if the system can do that. From the
  // first other call on, all bytes are copied.
  // Errors: RESOURCE_EXHAUSTED if the disk is full or a quota is reached, naming file and position.
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Returns when everything that was appended would survive a power cut.
  virtual absl::Status Sync() = 0;
};

// An existing file. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual uint64_t size() const = 0;
  // Reads exactly `bytes` bytes from `offset` on. Errors: DATA_LOSS if the file ends before that.
  virtual absl::Status Read(uint64_t offset, size_t bytes, std::byte* to) const = 0;
};

// A lock on a folder, which one holder at a time can have. It ends when this object is destroyed,
// and when the process dies.
class FolderLock {
 public:
  virtual ~FolderLock() = default;
};

// Relative paths start at the process's working directory. Errors of all functions: NOT_FOUND,
// PERMISSION_DENIED, ALREADY_EXISTS, RESOURCE_EXHAUSTED (the disk is full), otherwise UNAVAILABLE.
// All name the path. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static std::shared_ptr<FileSystem> Posix();

  // Creates a file. Errors: ALREADY_EXISTS.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Opens a file. Errors: INVALID_ARGUMENT if it is not a regular file.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  // Returns the path of an existing file or folder as an absolute path without symbolic links, "."
  // and "..".
  virtual absl::StatusOr<std::string> RealPath(const std::string& path) = 0;
  // Creates a folder with its parents. An existing folder is not an error.
  virtual absl::Status MakeFolder(const std::string& path) = 0;
  // Returns the names in a folder, sorted.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& folder) = 0;
  // Renames a file or folder. An existing file or empty folder `to` is replaced.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Removes a file, or a folder with everything in it. It is not an error if nothing is there.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Returns when the names in `folder` would survive a power cut.
  virtual absl::Status SyncFolder(const std::string& folder) = 0;
  // Returns the number of bytes that can still be written in `folder`.
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& folder) = 0;
  // Locks a folder against other saves. Errors: FAILED_PRECONDITION if another holder has the lock.
  virtual absl::StatusOr<std::unique_ptr<FolderLock>> Lock(const std::string& folder) = 0;
};

// Returns the contents of a small file. Errors: INVALID_ARGUMENT if it has more than `max_bytes`.
absl::StatusOr<std::string> ReadWhole(FileSystem& files, const std::string& path,
                                      uint64_t max_bytes);

}  // namespace psd::checkpoint
