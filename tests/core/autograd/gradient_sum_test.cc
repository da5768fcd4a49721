#include "core/autograd/gradient_sum.h"

#include <utility>

#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"

namespace psd {
namespace {

Tensor Pair(float a, float b) {
  return Tensor::Of<float>({2}, {a, b});
}

void ExpectPair(const Tensor& tensor, float a, float b) {
  EXPECT_EQ(tensor.data<float>()[0], a);
  EXPECT_EQ(tensor.data<float>()[1], b);
}

TEST(GradientSumTest, WhatNobodyElseSeesIsAddedToInPlace) {
  Tensor first = Pair(1, 2);
  const float* elements = first.data<float>();
  GradientSum sum;
  ASSERT_TRUE(sum.Add(std::move(first)).ok());
  ASSERT_TRUE(sum.Add(Tensor()).ok());
  ASSERT_TRUE(sum.Add(Pair(10, 20)).ok());
  const Tensor total = sum.Take();
  ExpectPair(total, 11, 22);
  EXPECT_EQ(total.data<float>(), elements);
  EXPECT_FALSE(sum.defined());
}

TEST(GradientSumTest, WhatOthersSeeStaysAsItIs) {
  const Tensor copy = Pair(1, 2);
  const Tensor viewed = Pair(3, 4);
  const Tensor view = viewed.View({1}, {1}, 1);
  const Buffer bytes = Pair(5, 6).AsBuffer();
  GradientSum sum;
  for (const Tensor& first : {copy, viewed, *Tensor::FromBuffer({2}, DType::kF32, bytes)}) {
    ASSERT_TRUE(sum.Add(first).ok());
    ASSERT_TRUE(sum.Add(Pair(10, 20)).ok());
    ASSERT_TRUE(sum.Add(Pair(100, 200)).ok());
    ExpectPair(sum.Take(), first.data<float>()[0] + 110, first.data<float>()[1] + 220);
  }
  ExpectPair(copy, 1, 2);
  EXPECT_EQ(view.data<float>()[0], 4);
  EXPECT_EQ(reinterpret_cast<const float*>(bytes.data())[1], 6);
}

TEST(GradientSumTest, OtherShapesAreRefused) {
  GradientSum sum;
  ASSERT_TRUE(sum.Add(Pair(1, 2)).ok());
  EXPECT_EQ(sum.Add(Tensor::Scalar(1.0f)).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd
