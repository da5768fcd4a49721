#include "examples/fashion_mnist/idx_reader.h"

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

constexpr uint32_t kImages = 0x803;
constexpr uint32_t kLabels = 0x801;

std::string ImageBytes() {
  return IdxBytes(kImages, {2, 1, 3}, absl::string_view("\0\1\2\3\4\xff", 6));
}

std::string Path(const std::string& name) {
  return testing::TempDir() + "/" + name;
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(IdxReader, ReadsImages) {
  const std::string path = WriteTestFile(Path("images.gz"), Gzip(ImageBytes()));
  const auto images = ReadIdxImages(path);
  ASSERT_TRUE(images.ok()) << images.status();
  EXPECT_EQ(images->count, 2);
  EXPECT_EQ(images->rows, 1);
  EXPECT_EQ(images->columns, 3);
  EXPECT_THAT(images->pixels, ElementsAre(0, 1, 2, 3, 4, 255));
}

TEST(IdxReader, ReadsLabels) {
  const std::string path = WriteTestFile(Path("labels.gz"), Gzip(IdxBytes(kLabels, {3}, "abc")));
  const auto labels = ReadIdxLabels(path);
  ASSERT_TRUE(labels.ok()) << labels.status();
  EXPECT_THAT(*labels, ElementsAre('a', 'b', 'c'));
}

TEST(IdxReader, MissingFileNamesPathAndRemedy) {
  const absl::Status status = ReadIdxLabels("/nowhere/labels.gz").status();
  ExpectError(status, absl::StatusCode::kNotFound, "/nowhere/labels.gz");
  EXPECT_THAT(std::string(status.message()), HasSubstr("--data"));
}

TEST(IdxReader, EmptyFileAndFolderAreRefused) {
  ExpectError(ReadIdxLabels(WriteTestFile(Path("empty.gz"), "")).status(),
              absl::StatusCode::kInvalidArgument, "empty");
  EXPECT_FALSE(ReadIdxLabels(testing::TempDir()).ok());
}

TEST(IdxReader, NotGzipIsRefused) {
  ExpectError(Gunzip("this is a text file, not gzip", "x").status(),
              absl::StatusCode::kInvalidArgument, "not a gzip file");
}

TEST(IdxReader, EveryTruncationIsRefused) {
  const std::string whole = Gzip(ImageBytes());
  for (size_t size = 0; size < whole.size(); ++size) {
    ExpectError(Gunzip(whole.substr(0, size), "x").status(), absl::StatusCode::kInvalidArgument,
                "cut off");
  }
}

TEST(IdxReader, DamageIsNoticed) {
  std::string damaged = Gzip(ImageBytes());
  damaged[damaged.size() - 5] ^= 1;  // a byte of the checksum, which is before the length
  EXPECT_FALSE(Gunzip(damaged, "x").ok());
  ExpectError(Gunzip(Gzip("abc") + "more", "x").status(), absl::StatusCode::kInvalidArgument,
              "4 stray bytes");
}

TEST(IdxReader, LimitsHold) {
  IdxLimits limits;
  limits.max_inflated_bytes = size_t{1} << 20;
  const std::string bomb = Gzip(std::string(size_t{8} << 20, '\0'));
  EXPECT_LT(bomb.size(), size_t{100} << 10);
  ExpectError(Gunzip(bomb, "x", limits).status(), absl::StatusCode::kResourceExhausted,
              "decompresses to more than");
  limits.max_file_bytes = 10;
  const std::string path = WriteTestFile(Path("large.gz"), bomb);
  ExpectError(ReadIdxImages(path, limits).status(), absl::StatusCode::kResourceExhausted,
              "limit of 10");
}

TEST(IdxReader, ShortHeaderIsRefused) {
  for (size_t size = 0; size < 16; ++size) {
    ExpectError(ParseIdxImages(ImageBytes().substr(0, size), "x").status(),
                absl::StatusCode::kInvalidArgument, "cut off");
  }
}

TEST(IdxReader, WrongMagicIsRefused) {
  ExpectError(ParseIdxImages(IdxBytes(kLabels, {1, 1, 1}, "a"), "x").status(),
              absl::StatusCode::kInvalidArgument, "0x00000801, expected 0x00000803");
  ExpectError(ParseIdxLabels(ImageBytes(), "x").status(), absl::StatusCode::kInvalidArgument,
              "magic number");
}

TEST(IdxReader, SizesMustAgree) {
  ExpectError(ParseIdxLabels(IdxBytes(kLabels, {4}, "abc"), "x").status(),
              absl::StatusCode::kInvalidArgument, "cut off: 3 elements, but its header says 4");
  ExpectError(ParseIdxLabels(IdxBytes(kLabels, {2}, "abc"), "x").status(),
              absl::StatusCode::kInvalidArgument, "too long");
  ExpectError(ParseIdxLabels(IdxBytes(kLabels, {0}, ""), "x").status(),
              absl::StatusCode::kInvalidArgument, "extent is 0");
}

TEST(IdxReader, OverflowingExtentsAllocateNothing) {
  const uint32_t huge = 0xffffffff;
  ExpectError(ParseIdxImages(IdxBytes(kImages, {huge, huge, huge}, "a"), "x").status(),
              absl::StatusCode::kInvalidArgument, "overflow");
  ExpectError(ParseIdxImages(IdxBytes(kImages, {huge, huge, 1}, "a"), "x").status(),
              absl::StatusCode::kInvalidArgument, "cut off");
}

}  // namespace
}  // namespace psd::examples
