#pragma once

// Reads a save: its index, its tensors, and the checksums of its files.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/buffer.h"
#include "core/checkpoint/checkpoint_index.h"
#include "core/checkpoint/file_system.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/tensor/tensor.h"

namespace psd::checkpoint {

// Reads the header of the safetensors file at `path`. Errors: those of the codec, naming the file.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const ReadableFile& file,
                                                        const std::string& path);

// A range of slices of a tensor along its first axis. Functions that take one require that it is
// within the tensor.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
};

// An open save. Thread-safe.
class SaveReader {
 public:
  // Opens the save in `folder` with all its files, and checks that they have all tensors that the
  // index names, with the right shapes and dtypes. The elements are not read yet.
  // Errors: DATA_LOSS for files that are missing, have another size, or do not hold the tensors of
  // the index; INVALID_ARGUMENT for an invalid index or header. All name the file.
  static absl::StatusOr<std::unique_ptr<SaveReader>> Open(std::shared_ptr<FileSystem> files,
                                                          const std::string& folder);

  const std::string& folder() const { return folder_; }
  const CheckpointIndex& index() const { return index_; }
  // The size of all files together.
  uint64_t bytes() const { return bytes_; }

  // Reads all files and compares their checksums with those of the index. `progress`, if not null,
  // is called with the number of bytes of each read, and returns whether to go on.
  // Errors: DATA_LOSS naming the file and both checksums; CANCELLED.
  absl::Status Verify(const std::function<bool(uint64_t bytes)>& progress) const;

  // Reads the elements of `value`, one of index().values.
  absl::StatusOr<Tensor> ReadValue(const SavedValue& value,
                                   std::optional<RowRange> rows = std::nullopt) const;
  // Reads one array of state of parameter number `parameter` of `optimizer`, one of
  // index().optimizers.
  absl::StatusOr<Tensor> ReadState(const SavedOptimizer& optimizer, size_t parameter,
                                   const SavedSlot& slot,
                                   std::optional<RowRange> rows = std::nullopt) const;
  // Read some bytes of an array of a value, or of state. Requires: the bytes are within the array.
  absl::StatusOr<Buffer> ReadValueBytes(const SavedValue& value, uint64_t first,
                                        uint64_t bytes) const;
  absl::StatusOr<Buffer> ReadStateBytes(const SavedOptimizer& optimizer, size_t parameter,
                                        const SavedSlot& slot, uint64_t first,
                                        uint64_t bytes) const;
  // Returns the shape and dtype of an array of state.
  TensorSpec StateSpec(const SavedOptimizer& optimizer, size_t parameter,
                       const SavedSlot& slot) const;

 private:
  struct OpenFile {
    SavedFile saved;
    std::string path;
    std::unique_ptr<ReadableFile> file;
    std::map<std::string, SafetensorsEntry> tensors;  // by name
  };

  SaveReader(std::string folder, CheckpointIndex index);
  absl::Status OpenAll(FileSystem& files);
  static absl::StatusOr<OpenFile> OpenSaved(FileSystem& files, const std::string& folder,
                                            const SavedFile& saved);
  static absl::Status VerifyFile(const OpenFile& open,
                                 const std::function<bool(uint64_t bytes)>& progress);
  // Returns null if the file has no such tensor.
  const SafetensorsEntry* Find(const std::string& file, const std::string& tensor) const;
  absl::Status CheckValue(const SavedValue& value) const;
  absl::Status CheckStates(const SavedOptimizer& optimizer) const;
  absl::StatusOr<Tensor> Read(const std::string& file, const std::string& name,
                              std::optional<RowRange> rows) const;
  absl::StatusOr<Buffer> ReadBytes(const std::string& file, const std::string& name, uint64_t first,
                                   uint64_t bytes) const;

  const std::string folder_;
  const CheckpointIndex index_;
  std::map<std::string, OpenFile> files_;  // by name; does not change after Open
  uint64_t bytes_ = 0;
};

}  // namespace psd::checkpoint
