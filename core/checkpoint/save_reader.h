#pragma once

// Reads a save: its index, its tensors, and the checksums of its files.

#include <functional>
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

// A range of slices of a tensor along its first axis. Functions that take one require that it lies
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
  virtual ~SaveReader() = default;

  virtual const std::string& folder() const = 0;
  virtual const CheckpointIndex& index() const = 0;
  // The size of all files together.
  virtual uint64_t bytes() const = 0;

  // Reads all files and compares their checksums with those of the index. `progress`, if not null,
  // is called with the number of bytes of each read, and returns whether to go on.
  // Errors: DATA_LOSS naming the file and both checksums; CANCELLED.
  virtual absl::Status Verify(const std::function<bool(uint64_t bytes)>& progress) const = 0;

  // Reads the elements of `value`, one of index().values.
  virtual absl::StatusOr<Tensor> ReadValue(const SavedValue& value,
                                           std::optional<RowRange> rows = std::nullopt) const = 0;
  // Reads one array of state of parameter number `parameter` of `optimizer`, one of
  // index().optimizers.
  virtual absl::StatusOr<Tensor> ReadState(const SavedOptimizer& optimizer, size_t parameter,
                                           const SavedSlot& slot,
                                           std::optional<RowRange> rows = std::nullopt) const = 0;
  // Read some bytes of the same two. Requires: the bytes lie within the array.
  virtual absl::StatusOr<Buffer> ReadValueBytes(const SavedValue& value, uint64_t first,
                                                uint64_t bytes) const = 0;
  virtual absl::StatusOr<Buffer> ReadStateBytes(const SavedOptimizer& optimizer, size_t parameter,
                                                const SavedSlot& slot, uint64_t first,
                                                uint64_t bytes) const = 0;
  // The shape and dtype of an array of state.
  virtual TensorSpec StateSpec(const SavedOptimizer& optimizer, size_t parameter,
                               const SavedSlot& slot) const = 0;
};

}  // namespace psd::checkpoint
