#include "core/tensor/tensor_codec.h"

#include <limits>
#include <string>
#include <vector>

#include "core/base/buffer.h"
#include "core/base/memory_place.h"
#include "core/tensor/dtype.h"
#include "core/tensor/flat_tensor.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/base/lent_block.h"

namespace psd {
namespace {

Buffer Bytes(size_t count, char value = 0) {
  return Buffer::FromString(std::string(count, value));
}

// Returns the columns of a single f32[2, 3].
TensorColumns OneMatrix() {
  return {{1}, {1}, {2}, {2, 3}};
}

void ExpectRefused(const TensorColumns& columns, size_t tensors, const std::string& part) {
  absl::Status status = DecodeRuns(columns, tensors).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find(part), std::string::npos) << status;
}

TensorColumns Encode(const std::vector<Tensor>& tensors) {
  std::vector<FlatTensor> each;
  for (const Tensor& tensor : tensors) each.push_back(Flat(tensor));
  TensorColumns columns;
  EncodeRuns(each, &columns);
  return columns;
}

TEST(TensorCodecTest, TensorsAlikeThatFollowEachOtherAreARun) {
  const Tensor row = Tensor::Of<float>(Shape{2}, {1, 2});
  const Tensor bools = Tensor::Of<bool>(Shape{2}, {true, false});
  const Tensor empty = *Tensor::Zeros(Shape{0, 9}, DType::kF32);
  auto runs = DecodeRuns(Encode({row, row, row, bools, row, empty, empty}), 7);
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_EQ(runs->size(), 4u);
  const size_t counts[] = {3, 1, 1, 2}, bytes[] = {8, 2, 8, 0};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*runs)[i].count, counts[i]);
    EXPECT_EQ((*runs)[i].spec.bytes, bytes[i]);
  }
  EXPECT_EQ((*runs)[1].spec.dtype, DType::kBool);
  EXPECT_EQ((*runs)[3].spec.shape, (Shape{0, 9}));
}

TEST(TensorCodecTest, GoldenColumns) {
  auto columns = Encode({Tensor::Of<float>(Shape{1, 2}, {1, -2}),
                         Tensor::Of<float>(Shape{1, 2}, {3, 4}), Tensor::Scalar(int32_t{5})});
  EXPECT_EQ(columns.counts, (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(columns.dtypes, (std::vector<uint32_t>{1, 4}));
  EXPECT_EQ(columns.ranks, (std::vector<uint32_t>{2, 0}));
  EXPECT_EQ(columns.dims, (std::vector<int64_t>{1, 2}));
}

TEST(TensorCodecTest, UndefinedTensorsCannotBeSent) {
  const Tensor tensors[] = {Tensor::Scalar(1.0f), Tensor()};
  EXPECT_TRUE(CheckSendable({&tensors[0]}).ok());
  absl::Status status = CheckSendable({&tensors[0], &tensors[1]});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("tensor 1"), std::string::npos) << status;
}

TEST(TensorCodecTest, NothingIsSomething) {
  EXPECT_TRUE(DecodeRuns({}, 0)->empty());
}

TEST(TensorCodecTest, CountsThatDisagree) {
  ExpectRefused(OneMatrix(), 0, "0 tensors arrived, but their runs add up to 1");
  ExpectRefused(OneMatrix(), 2, "2 tensors");
  ExpectRefused({{0}, {1}, {2}, {2, 3}}, 0, "no tensors");
  ExpectRefused({{1}, {1, 1}, {2}, {2, 3}}, 1, "2 dtypes");
  ExpectRefused({{1}, {1}, {}, {}}, 1, "0 ranks");
  ExpectRefused({{1}, {1}, {3}, {2, 3}}, 1, "add up to 3");
  ExpectRefused({{1}, {1}, {1}, {2, 3}}, 1, "add up to 1");
  // These sums would wrap around in 32 bits.
  ExpectRefused({{1, 1}, {1, 1}, {0xffffffffu, 3}, {2, 3}}, 2, "4294967298");
  ExpectRefused({{0xffffffffu, 3}, {1, 1}, {0, 0}, {}}, 2, "4294967298");
}

TEST(TensorCodecTest, UnknownDTypes) {
  for (uint32_t dtype : {0u, 9u, 257u, 0xffffffffu})
    ExpectRefused({{1}, {dtype}, {2}, {2, 3}}, 1, "dtype number");
}

TEST(TensorCodecTest, BadExtents) {
  ExpectRefused({{1}, {1}, {2}, {2, -3}}, 1, "negative");
  ExpectRefused({{1}, {1}, {2}, {std::numeric_limits<int64_t>::min(), 1}}, 1, "negative");
  const int64_t huge = int64_t{1} << 33;
  ExpectRefused({{1}, {1}, {2}, {huge, huge}}, 1, "more than");
  ExpectRefused({{1}, {1}, {3}, {huge, 0, huge}}, 1, "more than");
  ExpectRefused({{1}, {1}, {17}, std::vector<int64_t>(17, 1)}, 1, "17 axes");
  ExpectRefused({{5, 1}, {1, 1}, {0, 1}, {-1}}, 6, "tensor 5");
}

TEST(TensorCodecTest, BytesOfAnotherSize) {
  const TensorSpec matrix{Shape{2, 3}, DType::kF32, 24};
  EXPECT_TRUE(DecodeTensor(matrix, Bytes(24)).ok());
  for (size_t size : {0, 23, 25}) {
    absl::Status status = DecodeTensor(matrix, Bytes(size)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(std::to_string(size)), std::string::npos) << status;
  }
  EXPECT_FALSE(DecodeTensor({Shape{0}, DType::kF32, 0}, Bytes(1)).ok());
}

TEST(TensorCodecTest, ARunIsDecodedUpToTheWrongTensor) {
  std::vector<Tensor> tensors;
  EXPECT_TRUE(DecodeTensors({Shape{2}, DType::kF32, 8}, Bytes(40), 16, 3, &tensors).ok());
  EXPECT_EQ(tensors.size(), 3u);
  std::string bytes("\1\0\7\7\0\1\7\7\0\2", 10);
  const TensorSpec bools{Shape{2}, DType::kBool, 2};
  absl::Status status = DecodeTensors(bools, Buffer::FromString(bytes), 4, 3, &tensors);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("byte 1 of the bools is 2"), std::string::npos) << status;
  EXPECT_EQ(tensors.size(), 5u);
}

TEST(TensorCodecTest, BoolsMustBeZeroOrOne) {
  const TensorSpec bools{Shape{2}, DType::kBool, 2};
  EXPECT_TRUE(DecodeTensor(bools, Bytes(2, 1)).ok());
  absl::Status status = DecodeTensor(bools, Bytes(2, 2)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("0 or 1"), std::string::npos) << status;
}

// Another process may change what it lent after it was checked. Floats can be anything, so they are
// read in place; everything that may be an index or a condition is copied before it is checked.
TEST(TensorCodecTest, OnlyFloatsAreReadInPlaceInLentMemory) {
  for (uint32_t number = 1; number <= 8; ++number) {
    const DType dtype = static_cast<DType>(number);
    SCOPED_TRACE(DTypeName(dtype));
    const auto lent = testing::LentBlock::Of(std::string(2 * ItemSize(dtype), 1));
    const TensorSpec spec = {Shape{2}, dtype, 2 * ItemSize(dtype)};
    const Tensor tensor = *DecodeTensor(spec, Buffer(lent));
    std::vector<Tensor> run;
    ASSERT_TRUE(
        DecodeTensors({Shape{1}, dtype, ItemSize(dtype)}, Buffer(lent), ItemSize(dtype), 2, &run)
            .ok());
    for (const Tensor& each : {tensor, run[0], run[1]}) {
      EXPECT_EQ(each.place().kind() == MemoryPlace::Kind::kForeign, IsFloating(dtype));
      lent->data()[0] = lent->data()[ItemSize(dtype)] = std::byte{2};
      EXPECT_EQ(each.raw_data()[0], IsFloating(dtype) ? std::byte{2} : std::byte{1});
    }
    EXPECT_EQ(tensor.raw_data() == lent->data(), IsFloating(dtype));
  }
}

}  // namespace
}  // namespace psd
