#pragma once

// A safetensors file of a save while it is written: its header, and then exactly the tensors that
// the header tells of.

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
  std::vector<TensorSpec> tensors;  // in the order in which they come
};

// The bytes of the whole file. Errors: as EncodeSafetensorsHeader.
absl::StatusOr<uint64_t> FileBytes(const FileSpec& spec);

// Thread-compatible.
class TensorFile {
 public:
  // Writes the header. `memory` gives the pieces that are written at once (NewPieceMemory).
  // Errors: as EncodeSafetensorsHeader.
  static absl::StatusOr<std::unique_ptr<TensorFile>> Start(std::unique_ptr<WritableFile> file,
                                                           FileSpec spec,
                                                           std::shared_ptr<Allocator> memory);

  // The next tensor, or the next of its rows. Errors: ABORTED when it is another than the header
  // tells of; those of CheckedFile.
  absl::Status Append(const Tensor& tensor);
  // Whether Append would take it.
  absl::Status Check(const Tensor& tensor);
  // The next bytes of the next tensor. Errors: likewise, when there are more than it has.
  absl::Status AppendBytes(absl::string_view bytes);
  // Once, as the last call. Errors: ABORTED when a tensor has not come.
  absl::StatusOr<SavedFile> Finish();

  const std::string& name() const { return spec_.name; }

 private:
  TensorFile(FileSpec spec, std::unique_ptr<CheckedFile> file)
      : spec_(std::move(spec)), file_(std::move(file)) {}
  // The tensor of which bytes are to come; null: none.
  const TensorSpec* Next();

  const FileSpec spec_;
  const std::unique_ptr<CheckedFile> file_;
  size_t next_ = 0;      // of the tensors
  uint64_t filled_ = 0;  // bytes of it
};

}  // namespace psd::checkpoint
