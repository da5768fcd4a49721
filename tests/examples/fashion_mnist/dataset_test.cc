#include "examples/fashion_mnist/dataset.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/examples/fashion_mnist/idx_files.h"

namespace psd::examples {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Writes a training set with one image for each label. Pixel p of image i is (i + p) % 256.
std::string WriteSet(const std::string& labels, uint32_t side = 28) {
  std::string pixels;
  for (size_t i = 0; i < labels.size(); ++i) {
    for (uint32_t p = 0; p < side * side; ++p) pixels += static_cast<char>(i + p);
  }
  const std::string folder = testing::TempDir();
  const auto count = static_cast<uint32_t>(labels.size());
  WriteTestFile(folder + "/train-images-idx3-ubyte.gz",
                Gzip(IdxBytes(0x803, {count, side, side}, pixels)));
  WriteTestFile(folder + "/train-labels-idx1-ubyte.gz", Gzip(IdxBytes(0x801, {count}, labels)));
  return folder;
}

TEST(Dataset, BatchHasScaledPixelsAndLabels) {
  const auto dataset = Dataset::LoadTraining(WriteSet("\1\2\3"));
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(dataset->size(), 3);
  const auto batch = dataset->MakeBatch({2, 0});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ(batch->images.ToString(), "f32[2, 784]");
  EXPECT_EQ(batch->images.data<float>()[0], 2 / 255.0f);
  EXPECT_EQ(batch->images.data<float>()[kImagePixels + 255], 1.0f);
  EXPECT_EQ(batch->labels.data<int64_t>()[0], 3);
  EXPECT_EQ(batch->labels.data<int64_t>()[1], 1);
}

TEST(Dataset, RefusesWrongData) {
  const absl::Status label = Dataset::LoadTraining(WriteSet("\1\12")).status();
  EXPECT_EQ(label.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(label.message()), HasSubstr("label 10 of image 1"));

  const absl::Status size = Dataset::LoadTraining(WriteSet("\1", 27)).status();
  EXPECT_THAT(std::string(size.message()), HasSubstr("27 x 27"));

  const std::string folder = WriteSet("\1\2");
  WriteTestFile(folder + "/train-labels-idx1-ubyte.gz", Gzip(IdxBytes(0x801, {1}, "\1")));
  const absl::Status count = Dataset::LoadTraining(folder).status();
  EXPECT_THAT(std::string(count.message()), HasSubstr("1 labels for 2 images"));
}

TEST(Dataset, PartsCoverAllOnce) {
  std::vector<int32_t> all = PartIndices(7, 0, 2);
  EXPECT_THAT(all, ElementsAre(0, 2, 4, 6));
  const std::vector<int32_t> second = PartIndices(7, 1, 2);
  EXPECT_THAT(second, ElementsAre(1, 3, 5));
}

TEST(Dataset, ShuffleDependsOnSeedAndEpochOnly) {
  const std::vector<int32_t> indices = PartIndices(100, 0, 1);
  const std::vector<int32_t> once = Shuffled(indices, 1, 0);
  EXPECT_EQ(once, Shuffled(indices, 1, 0));
  EXPECT_NE(once, Shuffled(indices, 1, 1));
  EXPECT_NE(once, Shuffled(indices, 2, 0));
  std::vector<int32_t> sorted = once;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, indices);
}

}  // namespace
}  // namespace psd::examples
