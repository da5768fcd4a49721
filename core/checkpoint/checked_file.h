#pragma once

// A file of a save while it is written: hashed and brought to disk side by side.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/file_system.h"

namespace psd::checkpoint {

// Bytes that may wait to be hashed or written; Append waits when there are more.
inline constexpr size_t kMaxWaitingBytes = size_t{64} << 20;

// Has two threads of its own, one that hashes and one that writes. Thread-compatible.
class CheckedFile {
 public:
  // `name` is the file's in the index.
  static std::unique_ptr<CheckedFile> Start(std::unique_ptr<WritableFile> file, std::string name);
  // Gives up what was not finished.
  virtual ~CheckedFile() = default;

  // Takes the bytes; returns before they are written. Errors: an earlier write's.
  virtual absl::Status Append(Buffer bytes) = 0;
  // Done when all of it is on the disk. Once, as the last call.
  virtual absl::StatusOr<SavedFile> Finish() = 0;
};

}  // namespace psd::checkpoint
