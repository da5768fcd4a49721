#include "core/tensor/tensor.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/shape_ops.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

TEST(DTypeTest, NamesSizesAndValidity) {
  EXPECT_EQ(DTypeName(DType::kF32), "f32");
  EXPECT_EQ(DTypeName(DType::kBF16), "bf16");
  EXPECT_EQ(ItemSize(DType::kF64), 8u);
  EXPECT_EQ(ItemSize(DType::kBool), 1u);
  EXPECT_FALSE(IsValidDType(0));
  EXPECT_TRUE(IsValidDType(8));
  EXPECT_FALSE(IsValidDType(9));
  EXPECT_FALSE(IsFloating(DType::kI64));
}

TEST(DeviceTest, Names) {
  EXPECT_EQ(Device().ToString(), "cpu");
  EXPECT_EQ((Device{DeviceKind::kCuda, 1}).ToString(), "cuda:1");
  EXPECT_NE(Device(), (Device{DeviceKind::kCuda, 0}));
}

TEST(ShapeTest, CheckedRefusesWhatOverflows) {
  const int64_t huge = int64_t{1} << 40;
  EXPECT_TRUE(Shape::Checked({}).ok());
  EXPECT_TRUE(Shape::Checked({0, 5}).ok());
  EXPECT_TRUE(Shape::Checked({int64_t{1} << 59}).ok());
  EXPECT_FALSE(Shape::Checked({(int64_t{1} << 59) + 1}).ok());
  EXPECT_FALSE(Shape::Checked({huge, huge}).ok());
  EXPECT_FALSE(Shape::Checked({huge, 0, huge}).ok());
  EXPECT_FALSE(Shape::Checked({std::numeric_limits<int64_t>::max()}).ok());
  EXPECT_FALSE(Shape::Checked({2, -1}).ok());
  EXPECT_FALSE(Shape::Checked(std::vector<int64_t>(17, 1)).ok());
  EXPECT_TRUE(Shape::Checked(std::vector<int64_t>(16, 1)).ok());
}

TEST(ShapeTest, ErrorsNameTheShape) {
  EXPECT_NE(Shape::Checked({2, -1}).status().message().find("[2, -1]"), std::string::npos);
}

TEST(ShapeTest, ElementsStringsStrides) {
  EXPECT_EQ(Shape{}.NumElements(), 1);
  EXPECT_EQ((Shape{3, 0, 2}).NumElements(), 0);
  EXPECT_EQ((Shape{128, 784}).ToString(), "[128, 784]");
  EXPECT_EQ(Shape{}.ToString(), "[]");
  EXPECT_EQ(ContiguousStrides(Shape{2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(ContiguousStrides(Shape{}), Strides{});
}

TEST(ShapeTest, Broadcast) {
  EXPECT_EQ(*BroadcastShapes(Shape{2, 1, 4}, Shape{3, 1}), (Shape{2, 3, 4}));
  EXPECT_EQ(*BroadcastShapes(Shape{}, Shape{5}), (Shape{5}));
  EXPECT_EQ(*BroadcastShapes(Shape{0, 3}, Shape{1, 3}), (Shape{0, 3}));
  EXPECT_EQ(*BroadcastShapes(Shape{0}, Shape{1}), (Shape{0}));
  EXPECT_FALSE(BroadcastShapes(Shape{0}, Shape{2}).ok());
  absl::Status status = BroadcastShapes(Shape{2, 3}, Shape{4}).status();
  EXPECT_NE(status.message().find("[2, 3]"), std::string::npos);
  EXPECT_NE(status.message().find("[4]"), std::string::npos);
  const int64_t huge = int64_t{1} << 40;
  EXPECT_FALSE(BroadcastShapes(Shape{huge, 1}, Shape{1, huge}).ok());
}

TEST(TensorTest, UndefinedUntilAssigned) {
  Tensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(tensor.ToString(), "undefined");
  tensor = Tensor::Scalar(2.5);
  EXPECT_TRUE(tensor.defined());
  EXPECT_EQ(tensor.ToString(), "f64[]");
  EXPECT_EQ(*tensor.data<double>(), 2.5);
}

TEST(TensorTest, CreationInEveryDType) {
  for (int number = 1; number <= 8; ++number) {
    const DType dtype = static_cast<DType>(number);
    Tensor zeros = *Tensor::Zeros(Shape{3}, dtype);
    EXPECT_EQ(zeros.NumBytes(), 3 * ItemSize(dtype));
    Tensor ones = *Tensor::Full(Shape{3}, dtype, 1);
    EXPECT_TRUE(ops::Equal(*ops::Cast(ones, DType::kF64), Tensor::Of<double>(Shape{3}, {1, 1, 1})))
        << DTypeName(dtype);
    EXPECT_FALSE(ops::Equal(zeros, ones));
  }
  EXPECT_EQ(*Tensor::Full(Shape{}, DType::kI32, 1e30)->data<int32_t>(),
            std::numeric_limits<int32_t>::max());
  EXPECT_EQ(*Tensor::Full(Shape{}, DType::kI64, std::nan(""))->data<int64_t>(), 0);
}

TEST(TensorTest, EmptyTensors) {
  Tensor empty = *Tensor::Zeros(Shape{0, 4}, DType::kF32);
  EXPECT_TRUE(empty.defined());
  EXPECT_TRUE(empty.IsContiguous());
  EXPECT_EQ(empty.NumElements(), 0);
  EXPECT_EQ(empty.AsBuffer().size(), 0u);
  EXPECT_TRUE(empty.Clone().ok());
}

TEST(TensorTest, MoreThanTheSystemHas) {
  absl::StatusOr<Tensor> tensor = Tensor::Empty(Shape{int64_t{1} << 58}, DType::kF64);
  EXPECT_EQ(tensor.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(TensorTest, CopiesShareClonesDoNot) {
  Tensor a = Tensor::Of<float>(Shape{2}, {1, 2});
  Tensor b = a;
  EXPECT_EQ(a.data<float>(), b.data<float>());
  EXPECT_EQ(a.storage(), b.storage());
  Tensor c = *a.Clone();
  EXPECT_NE(a.data<float>(), c.data<float>());
  EXPECT_TRUE(ops::Equal(a, c));
  EXPECT_EQ(a.Contiguous()->data<float>(), a.data<float>());
}

TEST(TensorTest, ContiguousGathersViews) {
  Tensor x = Tensor::Of<float>(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
  Tensor turned = *ops::Transpose(x, 0, 1);
  EXPECT_FALSE(turned.IsContiguous());
  EXPECT_TRUE(ops::Equal(*turned.Contiguous(), Tensor::Of<float>(Shape{3, 2}, {1, 4, 2, 5, 3, 6})));
  // Axes of one element may have any stride.
  EXPECT_TRUE(x.View(Shape{1, 3}, {77, 1}, 3).IsContiguous());
}

TEST(TensorTest, FromBufferSharesAlignedBytes) {
  Tensor x = Tensor::Of<float>(Shape{4}, {1, 2, 3, 4});
  Tensor y = *Tensor::FromBuffer(Shape{2}, DType::kF32, x.AsBuffer().Slice(8, 8));
  EXPECT_EQ(y.data<float>(), x.data<float>() + 2);
  EXPECT_EQ(y.storage(), x.storage());
}

TEST(TensorTest, FromBufferCopiesMisalignedBytes) {
  std::string bytes(9, '\0');
  const float values[] = {1.5f, -2};
  std::memcpy(&bytes[1], values, 8);
  Tensor x = *Tensor::FromBuffer(Shape{2}, DType::kF32, Buffer::FromString(bytes).Slice(1, 8));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw_data()) % 4, 0u);
  EXPECT_TRUE(ops::Equal(x, Tensor::Of<float>(Shape{2}, {1.5f, -2})));
}

TEST(TensorTest, FromBufferNeedsTheExactSize) {
  for (size_t size : {0, 7, 9}) {
    absl::StatusOr<Tensor> x =
        Tensor::FromBuffer(Shape{2}, DType::kF32, Buffer::FromString(std::string(size, 'x')));
    EXPECT_EQ(x.status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
  EXPECT_TRUE(Tensor::FromBuffer(Shape{0}, DType::kF32, Buffer()).ok());
}

TEST(TensorTest, ASmallTensorThatNobodyElseSeesIsExclusive) {
  Tensor x = Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_TRUE(x.IsExclusive());
  {
    const Tensor copy = x;
    EXPECT_FALSE(x.IsExclusive());
    EXPECT_FALSE(copy.IsExclusive());
  }
  {
    const Tensor view = x.View({3}, {1}, 3);
    EXPECT_FALSE(x.IsExclusive());
    EXPECT_FALSE(view.IsExclusive());
  }
  {
    const Buffer bytes = x.AsBuffer();
    EXPECT_FALSE(x.IsExclusive());
  }
  EXPECT_TRUE(x.IsExclusive());
}

TEST(TensorTest, WhatLiesInMemoryOfItsOwnIsNotKnownToBeExclusive) {
  const Tensor arrived =
      *Tensor::FromBuffer({2}, DType::kF32, Buffer::FromString(std::string(8, '\0')));
  EXPECT_FALSE(arrived.IsExclusive());
  EXPECT_FALSE(Tensor::Zeros({1 << 20}, DType::kF32)->IsExclusive());
  EXPECT_FALSE(Tensor().IsExclusive());
}

}  // namespace
}  // namespace psd
