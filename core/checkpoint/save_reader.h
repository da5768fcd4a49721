#pragma once

// A save that is read: its index, and its tensors, once the files have shown to be whole.

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

// The header of the safetensors file at `path`. Errors: those of the codec, naming the file.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const ReadableFile& file,
                                                        const std::string& path);

// Some slices of a tensor along its first axis. Requires, where it is read: within the tensor.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Thread-safe.
class SaveReader {
 public:
  // Opens the save in `folder` with all its files, and checks that everything that the index names
  // is there, of the type that it says. The elements are not read yet.
  // Errors: DATA_LOSS for files that are missing, have another size, or do not hold what the index
  // says; INVALID_ARGUMENT for an index or a header that is none; each names the file.
  static absl::StatusOr<std::unique_ptr<SaveReader>> Open(std::shared_ptr<FileSystem> files,
                                                          const std::string& folder);
  virtual ~SaveReader() = default;

  virtual const std::string& folder() const = 0;
  virtual const CheckpointIndex& index() const = 0;
  // Of all files.
  virtual uint64_t bytes() const = 0;

  // Reads all files and compares their checksums. `progress` (may be null) is told of bytes read,
  // and answers whether to go on. Errors: DATA_LOSS naming the file and both sums; CANCELLED.
  virtual absl::Status Verify(const std::function<bool(uint64_t bytes)>& progress) const = 0;

  // The elements of `value`, one of index().values.
  virtual absl::StatusOr<Tensor> ReadValue(const SavedValue& value,
                                           std::optional<RowRange> rows = std::nullopt) const = 0;
  // One array of state: of parameter number `parameter` of `optimizer`, one of index().optimizers.
  virtual absl::StatusOr<Tensor> ReadState(const SavedOptimizer& optimizer, size_t parameter,
                                           const SavedSlot& slot,
                                           std::optional<RowRange> rows = std::nullopt) const = 0;
  // Some bytes of the same two. Requires: within them.
  virtual absl::StatusOr<Buffer> ReadValueBytes(const SavedValue& value, uint64_t first,
                                                uint64_t bytes) const = 0;
  virtual absl::StatusOr<Buffer> ReadStateBytes(const SavedOptimizer& optimizer, size_t parameter,
                                                const SavedSlot& slot, uint64_t first,
                                                uint64_t bytes) const = 0;
  // The shape and dtype of the same.
  virtual TensorSpec StateSpec(const SavedOptimizer& optimizer, size_t parameter,
                               const SavedSlot& slot) const = 0;
};

}  // namespace psd::checkpoint
