#include "core/tensor/tensor_codec.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/shape_ops.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

Buffer Bytes(size_t count, char value = 0) {
  return Buffer::FromString(std::string(count, value));
}

// The columns of one f32[2, 3].
TensorColumns OneMatrix() {
  return {{1}, {2}, {2, 3}};
}

absl::StatusOr<std::vector<Tensor>> Decode(const TensorColumns& columns,
                                           std::vector<Buffer> buffers) {
  PSD_ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, DecodeSpecs(columns));
  return DecodeTensors(std::move(specs), std::move(buffers));
}

void ExpectRefused(const TensorColumns& columns, const std::vector<Buffer>& buffers,
                   const std::string& part) {
  absl::Status status = Decode(columns, buffers).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find(part), std::string::npos) << status;
}

TEST(TensorCodecTest, RoundTrip) {
  const Tensor matrix = Tensor::Of<float>(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  const std::vector<Tensor> tensors = {
      matrix,
      Tensor::Scalar(int64_t{-7}),
      *Tensor::Zeros(Shape{0, 9}, DType::kF64),
      *ops::Transpose(matrix, 0, 1),
      Tensor::Of<bool>(Shape{3}, {true, false, true}),
      *Tensor::Full(Shape{2}, DType::kBF16, 1.5),
  };
  TensorColumns columns;
  std::vector<Buffer> buffers;
  ASSERT_TRUE(EncodeTensors(tensors, &columns, &buffers).ok());
  absl::StatusOr<std::vector<Tensor>> decoded = Decode(columns, buffers);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(ops::Equal((*decoded)[i], tensors[i]));
}

TEST(TensorCodecTest, GoldenColumns) {
  TensorColumns columns;
  std::vector<Buffer> buffers;
  const Tensor tensors[] = {Tensor::Of<float>(Shape{1, 2}, {1, -2}), Tensor::Scalar(int32_t{5})};
  ASSERT_TRUE(EncodeTensors(tensors, &columns, &buffers).ok());
  EXPECT_EQ(columns.dtypes, (std::vector<uint32_t>{1, 4}));
  EXPECT_EQ(columns.ranks, (std::vector<uint32_t>{2, 0}));
  EXPECT_EQ(columns.dims, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(buffers[0].view(), std::string("\0\0\x80\x3f\0\0\0\xc0", 8));
  EXPECT_EQ(buffers[1].view(), std::string("\5\0\0\0", 4));
}

TEST(TensorCodecTest, ElementsAreSharedNotCopied) {
  const Tensor x = *Tensor::Zeros(Shape{1000, 1000}, DType::kF32);
  const Tensor rows = *ops::Slice(x, 0, 10, 12);
  TensorColumns columns;
  std::vector<Buffer> buffers;
  ASSERT_TRUE(EncodeTensors({x, rows}, &columns, &buffers).ok());
  EXPECT_EQ(buffers[0].data(), x.raw_data());
  EXPECT_EQ(buffers[1].data(), rows.raw_data());
  EXPECT_EQ(buffers[1].size(), 8000u);
  EXPECT_EQ(Decode(columns, buffers)->at(0).raw_data(), x.raw_data());
}

TEST(TensorCodecTest, UndefinedTensorsAreRefusedAndChangeNothing) {
  TensorColumns columns = OneMatrix();
  std::vector<Buffer> buffers = {Bytes(24)};
  absl::Status status = EncodeTensors({Tensor::Scalar(1.0f), Tensor()}, &columns, &buffers);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("tensor 1"), std::string::npos) << status;
  EXPECT_EQ(columns.dtypes.size(), 1u);
  EXPECT_EQ(buffers.size(), 1u);
}

TEST(TensorCodecTest, NothingIsSomething) {
  EXPECT_TRUE(Decode({}, {})->empty());
}

TEST(TensorCodecTest, CountsThatDisagree) {
  ExpectRefused(OneMatrix(), {}, "0 payloads");
  ExpectRefused(OneMatrix(), {Bytes(24), Bytes(0)}, "2 payloads");
  ExpectRefused({{1, 1}, {2}, {2, 3}}, {Bytes(24)}, "2 dtypes");
  ExpectRefused({{1}, {}, {}}, {Bytes(4)}, "0 ranks");
  ExpectRefused({{1}, {3}, {2, 3}}, {Bytes(24)}, "add up to 3");
  ExpectRefused({{1}, {1}, {2, 3}}, {Bytes(8)}, "add up to 1");
  // Sums of ranks that would wrap around in 32 bits.
  ExpectRefused({{1, 1}, {0xffffffffu, 3}, {2, 3}}, {Bytes(4), Bytes(4)}, "4294967298");
}

TEST(TensorCodecTest, UnknownDTypes) {
  for (uint32_t dtype : {0u, 9u, 257u, 0xffffffffu})
    ExpectRefused({{dtype}, {2}, {2, 3}}, {Bytes(24)}, "dtype number");
}

TEST(TensorCodecTest, BadExtents) {
  ExpectRefused({{1}, {2}, {2, -3}}, {Bytes(24)}, "negative");
  ExpectRefused({{1}, {2}, {std::numeric_limits<int64_t>::min(), 1}}, {Bytes(24)}, "negative");
  const int64_t huge = int64_t{1} << 33;
  ExpectRefused({{1}, {2}, {huge, huge}}, {Bytes(0)}, "more than");
  ExpectRefused({{1}, {3}, {huge, 0, huge}}, {Bytes(0)}, "more than");
  ExpectRefused({{1}, {17}, std::vector<int64_t>(17, 1)}, {Bytes(4)}, "17 axes");
}

TEST(TensorCodecTest, PayloadsOfAnotherSize) {
  ExpectRefused(OneMatrix(), {Bytes(23)}, "23");
  ExpectRefused(OneMatrix(), {Bytes(25)}, "25");
  ExpectRefused(OneMatrix(), {Bytes(0)}, "tensor 0");
  ExpectRefused({{1}, {1}, {0}}, {Bytes(1)}, "0 bytes");
}

TEST(TensorCodecTest, BoolsMustBeZeroOrOne) {
  ExpectRefused({{6}, {1}, {2}}, {Bytes(2, 2)}, "0 or 1");
  EXPECT_TRUE(Decode({{6}, {1}, {2}}, {{Bytes(2, 1)}}).ok());
}

}  // namespace
}  // namespace psd
