#include "examples/fashion_mnist/dataset.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "examples/fashion_mnist/idx_reader.h"

namespace psd::examples {

absl::StatusOr<Dataset> Dataset::LoadTraining(const std::string& folder) {
  return Load(folder, "train");
}

absl::StatusOr<Dataset> Dataset::LoadTest(const std::string& folder) {
  return Load(folder, "t10k");
}

absl::StatusOr<Dataset> Dataset::Load(const std::string& folder, const std::string& prefix) {
  const std::string image_path = absl::StrCat(folder, "/", prefix, "-images-idx3-ubyte.gz");
  const std::string label_path = absl::StrCat(folder, "/", prefix, "-labels-idx1-ubyte.gz");
  PSD_ASSIGN_OR_RETURN(IdxImages images, ReadIdxImages(image_path));
  PSD_ASSIGN_OR_RETURN(std::vector<uint8_t> labels, ReadIdxLabels(label_path));
  if (images.rows != kImageSide || images.columns != kImageSide) {
    return absl::InvalidArgumentError(absl::StrCat(image_path, ": images of ", images.rows, " x ",
                                                   images.columns, ", expected 28 x 28"));
  }
  if (images.count != static_cast<int64_t>(labels.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(label_path, ": ", labels.size(), " labels for ", images.count, " images"));
  }
  const auto largest = std::max_element(labels.begin(), labels.end());
  if (*largest >= kClasses) {
    return absl::InvalidArgumentError(absl::StrCat(label_path, ": label ", int{*largest},
                                                   " of image ", largest - labels.begin(),
                                                   ", expected 0 to 9"));
  }
  Dataset dataset;
  dataset.pixels_ = std::move(images.pixels);
  dataset.labels_ = std::move(labels);
  return dataset;
}

absl::StatusOr<Batch> Dataset::MakeBatch(absl::Span<const int32_t> indices) const {
  const auto count = static_cast<int64_t>(indices.size());
  Batch batch;
  PSD_ASSIGN_OR_RETURN(batch.images, Tensor::Empty({count, kImagePixels}, DType::kF32));
  PSD_ASSIGN_OR_RETURN(batch.labels, Tensor::Empty({count}, DType::kI64));
  auto* images = batch.images.mutable_data<float>();
  auto* labels = batch.labels.mutable_data<int64_t>();
  for (int32_t index : indices) {
    const uint8_t* pixels = &pixels_[static_cast<size_t>(index) * kImagePixels];
    for (int64_t i = 0; i < kImagePixels; ++i) images[i] = static_cast<float>(pixels[i]) / 255.0f;
    images += kImagePixels;
    *labels++ = label(index);
  }
  return batch;
}

std::vector<int32_t> PartIndices(int64_t size, int part, int parts) {
  std::vector<int32_t> indices;
  for (int64_t i = part; i < size; i += parts) indices.push_back(static_cast<int32_t>(i));
  return indices;
}

std::vector<int32_t> Shuffled(std::vector<int32_t> indices, uint64_t seed, int epoch) {
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(epoch));
  for (size_t left = indices.size(); left > 1; --left) {
    std::swap(indices[left - 1], indices[random() % left]);
  }
  return indices;
}

}  // namespace psd::examples
