#pragma once

// A file of a save while it is written: its checksum is taken, and its bytes are gathered into
// large pieces that go to the disk side by side with what comes next.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/file_system.h"

namespace psd::checkpoint {

// What is written at once.
inline constexpr size_t kFilePieceBytes = size_t{2} << 20;
// Pieces that may wait to be written; Append waits when there are more.
inline constexpr size_t kMaxWaitingPieces = 2;

// Memory for pieces, kept to be used again, as direct writing wants it: each a mapping of its own.
// For all files that are written at the same time.
std::shared_ptr<Allocator> NewPieceMemory();

// Has a thread of its own, which writes. Thread-compatible.
class CheckedFile {
 public:
  // `name` is the file's in the index. `memory` gives the pieces (NewPieceMemory).
  // Errors: RESOURCE_EXHAUSTED when the system refuses the thread.
  static absl::StatusOr<std::unique_ptr<CheckedFile>> Start(std::unique_ptr<WritableFile> file,
                                                            std::string name,
                                                            std::shared_ptr<Allocator> memory);
  // Gives up what was not finished.
  virtual ~CheckedFile() = default;

  // Copies the bytes; returns before they are written. Errors: an earlier write's;
  // RESOURCE_EXHAUSTED without memory for a piece.
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Done when all of it is on the disk. Once, as the last call.
  virtual absl::StatusOr<SavedFile> Finish() = 0;
};

}  // namespace psd::checkpoint
