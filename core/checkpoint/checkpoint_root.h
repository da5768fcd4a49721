#pragma once

// The folder below which an owner may write its own files of a save, and how it finds the save's
// there.
//
// The path comes from a peer, so nothing about it is believed: it leads down from the root, through
// folders alone, to an unfinished save (save_names.h), and a file there holds what the peer says it
// holds, random digits that are nowhere else. So the folder is the one that the peer writes to, and
// not one that is called the same.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/file_system.h"

namespace psd::checkpoint {

inline constexpr size_t kMaxPathBytes = 4095;

// The folder of a save. Names are plain. Thread-compatible.
class FoundFolder {
 public:
  virtual ~FoundFolder() = default;
  // A new file. Errors: ALREADY_EXISTS, and those of FileSystem.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& name) = 0;
  virtual absl::Status Remove(const std::string& name) = 0;
  // Names in it survive a power cut.
  virtual absl::Status Sync() = 0;
};

// Thread-safe.
class CheckpointRoot {
 public:
  struct Options {
    // Lets the system resolve paths beneath the root (openat2) where it can. Otherwise they are
    // walked folder by folder.
    bool openat2 = true;
  };
  // The root is what `path` leads to now, symbolic links included; later changes of these do not
  // move it. Errors: INVALID_ARGUMENT (not absolute, no folder), NOT_FOUND, PERMISSION_DENIED.
  static absl::StatusOr<std::shared_ptr<CheckpointRoot>> Open(const std::string& path,
                                                              const Options& options);
  static absl::StatusOr<std::shared_ptr<CheckpointRoot>> Open(const std::string& path) {
    return Open(path, Options());
  }
  virtual ~CheckpointRoot() = default;

  // Errors: FAILED_PRECONDITION when `path` is not that of an unfinished save below the root, or
  // its token is another.
  virtual absl::StatusOr<std::unique_ptr<FoundFolder>> Find(const std::string& path,
                                                            const std::string& token) = 0;
};

}  // namespace psd::checkpoint
