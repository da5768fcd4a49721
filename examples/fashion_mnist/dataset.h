#pragma once

// Fashion-MNIST in memory: 28 x 28 grey images of ten kinds of clothing, and batches of them.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/tensor.h"

namespace psd::examples {

inline constexpr int64_t kImageSide = 28;
inline constexpr int64_t kImagePixels = kImageSide * kImageSide;
inline constexpr int kClasses = 10;

struct Batch {
  Tensor images;  // f32[n, 784], from 0 to 1
  Tensor labels;  // i64[n], from 0 to 9
};

// Thread-compatible.
class Dataset {
 public:
  // Reads the data set from its four files in `folder`, which have their usual names.
  // Errors: those of idx_reader.h; INVALID_ARGUMENT for images of another size, a label above 9, or
  // different numbers of images and labels.
  static absl::StatusOr<Dataset> LoadTraining(const std::string& folder);
  static absl::StatusOr<Dataset> LoadTest(const std::string& folder);

  int64_t size() const { return static_cast<int64_t>(labels_.size()); }
  uint8_t label(int64_t index) const { return labels_[static_cast<size_t>(index)]; }

  // Returns the images with these indices. Requires: each index is in [0, size()).
  absl::StatusOr<Batch> MakeBatch(absl::Span<const int32_t> indices) const;

 private:
  static absl::StatusOr<Dataset> Load(const std::string& folder, const std::string& prefix);

  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
};

// Returns part `part` of `parts` of the indices below `size`: every `parts`-th index.
// Requires: 0 <= part < parts.
std::vector<int32_t> PartIndices(int64_t size, int part, int parts);

// Returns `indices` in an order that depends on seed and epoch only.
std::vector<int32_t> Shuffled(std::vector<int32_t> indices, uint64_t seed, int epoch);

}  // namespace psd::examples
