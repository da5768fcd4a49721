#pragma once

// A file of a save while it is written. Computes its checksum, and gathers its bytes into large
// pieces, which are written while the next bytes are prepared.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/file_system.h"
#include "core/checkpoint/xxh128.h"

namespace psd::checkpoint {

// The size of the pieces that are written at once.
inline constexpr size_t kFilePieceBytes = size_t{2} << 20;
// The most pieces that may wait to be written. Append waits while there are this many.
inline constexpr size_t kMaxWaitingPieces = 2;

// Returns an allocator for pieces, to be shared by all files that are written at the same time.
// Each piece is a mapping of its own, as direct writing needs it, and freed pieces are kept for
// reuse.
std::shared_ptr<Allocator> NewPieceMemory();

// Writes on a thread of its own. Thread-compatible.
class CheckedFile {
 public:
  // `name` is the name of the file in the index. `memory` allocates the pieces (NewPieceMemory).
  // Errors: RESOURCE_EXHAUSTED if the system refuses the thread.
  static absl::StatusOr<std::unique_ptr<CheckedFile>> Start(std::unique_ptr<WritableFile> file,
                                                            std::string name,
                                                            std::shared_ptr<Allocator> memory);
  // Stops writing. A file that was not finished is left incomplete.
  ~CheckedFile();

  // Copies the bytes, and returns before they are written. Errors: those of an earlier write;
  // RESOURCE_EXHAUSTED if there is no memory for a piece.
  absl::Status Append(absl::string_view bytes);
  // Returns when the whole file is on the disk. Must be the last call.
  absl::StatusOr<SavedFile> Finish();

 private:
  class Writer;

  CheckedFile(std::unique_ptr<Writer> writer, std::string name, std::shared_ptr<Allocator> memory);
  absl::Status GivePiece();

  SavedFile saved_;
  Xxh128 checksum_;
  const std::shared_ptr<Allocator> memory_;  // shared by the files of a save
  std::shared_ptr<Block> piece_;             // the piece that is being filled, or null
  size_t filled_ = 0;                        // the bytes of it that are filled
  const std::unique_ptr<Writer> writer_;
};

}  // namespace psd::checkpoint
