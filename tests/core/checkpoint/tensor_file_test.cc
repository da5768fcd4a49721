#include "core/checkpoint/tensor_file.h"

#include <memory>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/checkpoint/fake_file_system.h"

namespace psd::checkpoint {
namespace {

using ::testing::HasSubstr;

const FileSpec kSpec{"f",
                     {{"w", DType::kF32, Shape{4, 2}},
                      {"none", DType::kF32, Shape{0, 2}},
                      {"n", DType::kI64, Shape{}}}};

Tensor Rows(int64_t rows, float value) {
  return *Tensor::Full(Shape{rows, 2}, DType::kF32, value);
}

class TensorFileTest : public ::testing::Test {
 protected:
  TensorFileTest() {
    auto file = disk_->Create("f");
    if (file.ok()) file_ = *TensorFile::Start(*std::move(file), kSpec, NewPieceMemory());
  }

  const std::shared_ptr<FakeFileSystem> disk_ = std::make_shared<FakeFileSystem>();
  std::unique_ptr<TensorFile> file_;
};

TEST_F(TensorFileTest, WholeInRowsAndInBytes) {
  ASSERT_TRUE(file_->Append(Rows(1, 1)).ok());
  const Tensor more = Rows(3, 2);
  ASSERT_TRUE(file_->AppendBytes(more.AsBuffer().view().substr(0, 5)).ok());
  ASSERT_TRUE(file_->AppendBytes(more.AsBuffer().view().substr(5)).ok());
  ASSERT_TRUE(file_->Append(Rows(0, 0)).ok());
  ASSERT_TRUE(file_->Append(Tensor::Scalar<int64_t>(7)).ok());
  const auto saved = file_->Finish();
  ASSERT_TRUE(saved.ok()) << saved.status();
  const std::string bytes = disk_->files().at("f");
  EXPECT_EQ(saved->bytes, bytes.size());
  EXPECT_EQ(*FileBytes(kSpec), bytes.size());
  const auto length = SafetensorsHeaderLength(bytes.substr(0, 8), bytes.size());
  ASSERT_TRUE(length.ok()) << length.status();
  const auto header = DecodeSafetensorsHeader(bytes.substr(8, *length), bytes.size());
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors.size(), 3u);
  EXPECT_THAT(bytes, ::testing::EndsWith(std::string(more.AsBuffer().view()) +
                                         std::string("\7\0\0\0\0\0\0\0", 8)));
}

TEST_F(TensorFileTest, OnlyWhatTheHeaderTellsOf) {
  const absl::Status other = file_->Append(*Tensor::Full(Shape{4, 2}, DType::kF64, 1));
  EXPECT_EQ(other.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(other.message()), HasSubstr("'w' was f32[4, 2] and has become f64"));
  EXPECT_FALSE(file_->Append(*Tensor::Full(Shape{4, 3}, DType::kF32, 1)).ok());
  EXPECT_FALSE(file_->Append(Tensor::Scalar<float>(1)).ok());
  EXPECT_FALSE(file_->Append(Rows(5, 1)).ok());
  ASSERT_TRUE(file_->Append(Rows(3, 1)).ok());
  EXPECT_FALSE(file_->Append(Rows(2, 1)).ok());
  EXPECT_FALSE(file_->AppendBytes(std::string(9, 'x')).ok());
  const absl::Status missing = file_->Finish().status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("'w' did not come as a whole"));
}

TEST_F(TensorFileTest, MoreRowsThanAShapeOfThatWidthMayHave) {
  auto disk_file = disk_->Create("wide");
  ASSERT_TRUE(disk_file.ok());
  auto file = TensorFile::Start(*std::move(disk_file),
                                {"wide", {{"w", DType::kF32, Shape{1, int64_t{1} << 59}}}},
                                NewPieceMemory());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Append(Rows(2, 1)).code(), absl::StatusCode::kAborted);
}

TEST_F(TensorFileTest, NothingAfterTheLast) {
  ASSERT_TRUE(file_->Append(Rows(4, 1)).ok());
  EXPECT_THAT(std::string(file_->Finish().status().message()), HasSubstr("'n' did not come"));
  ASSERT_TRUE(file_->Append(Tensor::Scalar<int64_t>(7)).ok());
  EXPECT_FALSE(file_->Append(Tensor::Scalar<int64_t>(7)).ok());
  EXPECT_FALSE(file_->AppendBytes("x").ok());
}

}  // namespace
}  // namespace psd::checkpoint
