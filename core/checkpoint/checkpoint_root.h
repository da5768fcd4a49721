#pragma once

// The folder below which an owner may write its own files of a save. Finds the folder of a save
// there.
//
// The path of that folder comes from a peer, so everything about it is checked. It must lead down
// from the root, only through folders, to an unfinished save (save_names.h). A file there, the
// token, must hold the random digits that the peer has sent. This shows that it is the folder that
// the peer writes to, and not another one with the same path.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/file_system.h"

namespace psd::checkpoint {

inline constexpr size_t kMaxPathBytes = 4095;

// The folder of an unfinished save. Names of files must be plain (IsPlainName). Thread-compatible.
class FoundFolder {
 public:
  virtual ~FoundFolder() = default;
  // Creates a file. Errors: ALREADY_EXISTS, and those of FileSystem.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& name) = 0;
  virtual absl::Status Remove(const std::string& name) = 0;
  // Returns when the names in the folder would survive a power cut.
  virtual absl::Status Sync() = 0;
};

// A folder that saves may be written below. Thread-safe.
class CheckpointRoot {
 public:
  struct Options {
    // Whether to let the system resolve paths beneath the root (openat2) if it can. Otherwise paths
    // are resolved folder by folder.
    bool openat2 = true;
  };
  // Opens the folder that `path` leads to now; symbolic links are followed, and later changes of
  // them have no effect. Errors: INVALID_ARGUMENT (not absolute, or not a folder), NOT_FOUND,
  // PERMISSION_DENIED.
  static absl::StatusOr<std::shared_ptr<CheckpointRoot>> Open(const std::string& path,
                                                              const Options& options);
  static absl::StatusOr<std::shared_ptr<CheckpointRoot>> Open(const std::string& path) {
    return Open(path, Options());
  }
  virtual ~CheckpointRoot() = default;

  // Opens the folder of an unfinished save. Errors: FAILED_PRECONDITION if `path` is not an
  // unfinished save below the root, or if the folder there has another token.
  virtual absl::StatusOr<std::unique_ptr<FoundFolder>> Find(const std::string& path,
                                                            const std::string& token) = 0;
};

}  // namespace psd::checkpoint
