#pragma once

// A safetensors file of a save while it is written: first its header, and then exactly the tensors
// that the header names.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/checkpoint/checked_file.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/file_system.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/tensor/tensor.h"

namespace psd::checkpoint {

struct FileSpec {
  std::string name;
  std::vector<TensorSpec> tensors;  // in the order in which they are appended
};

// Returns the size of the whole file in bytes. Errors: as EncodeSafetensorsHeader.
absl::StatusOr<uint64_t> FileBytes(const FileSpec& spec);

// Checks that the tensors come in the order and form that the header says. Thread-compatible.
class TensorFile {
 public:
  // Writes the header. `memory` allocates the pieces that are written at once (NewPieceMemory).
  // Errors: as EncodeSafetensorsHeader; those of CheckedFile::Start.
  static absl::StatusOr<std::unique_ptr<TensorFile>> Start(std::unique_ptr<WritableFile> file,
                                                           FileSpec spec,
                                                           std::shared_ptr<Allocator> memory);

  // Appends the next tensor, or its next rows. Errors: ABORTED if shape or dtype differ from the
  // header; those of CheckedFile.
  absl::Status Append(const Tensor& tensor);
  // Checks that Append would accept the shape and dtype of `tensor`. Errors: as Append.
  absl::Status Check(const Tensor& tensor);
  // Appends the next bytes of the next tensor. Errors: ABORTED if the tensor has fewer bytes left;
  // those of CheckedFile.
  absl::Status AppendBytes(absl::string_view bytes);
  // Finishes the file. Must be the last call. Errors: ABORTED if a tensor is missing or incomplete;
  // those of CheckedFile.
  absl::StatusOr<SavedFile> Finish();

  const std::string& name() const { return spec_.name; }

 private:
  TensorFile(FileSpec spec, std::unique_ptr<CheckedFile> file)
      : spec_(std::move(spec)), file_(std::move(file)) {}
  // Returns the tensor whose bytes come next, or null if all have come.
  const TensorSpec* Next();

  const FileSpec spec_;
  const std::unique_ptr<CheckedFile> file_;
  size_t next_ = 0;      // the number of the tensor whose bytes come next
  uint64_t filled_ = 0;  // how many bytes of it have come
};

}  // namespace psd::checkpoint
