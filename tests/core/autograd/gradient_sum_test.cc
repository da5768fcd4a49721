#include "core/autograd/gradient_sum.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/buffer.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
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

TEST(GradientSumsTest, WhatNobodyElseSeesIsAddedToInPlace) {
  Tensor first = Pair(1, 2);
  const float* elements = first.data<float>();
  GradientSums sums(2);
  ASSERT_TRUE(sums.Add(1, std::move(first)).ok());
  ASSERT_TRUE(sums.Add(1, Tensor()).ok());
  ASSERT_TRUE(sums.Add(1, Pair(10, 20)).ok());
  const Tensor total = *sums.Take(1);
  ExpectPair(total, 11, 22);
  EXPECT_EQ(total.data<float>(), elements);
  EXPECT_FALSE(sums.Defined(1));
  EXPECT_FALSE(sums.Defined(0));
}

TEST(GradientSumsTest, HalvesAreAddedInFloats) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    GradientSums sums(1);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(sums.Add(0, *ops::Cast(Pair(1.5f, -3), dtype)).ok());
    const Tensor total = *sums.Take(0);
    EXPECT_EQ(total.dtype(), dtype);
    ExpectPair(*ops::Cast(total, DType::kF32), 4.5f, -9);
  }
}

// In bf16, 256 + 1 is 256, and in f16, 2048 + 1 is 2048: added one by one, further gradients would
// be lost.
TEST(GradientSumsTest, ManySmallHalvesAreNotLost) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    GradientSums sums(2);
    for (int i = 0; i < 4096; ++i) ASSERT_TRUE(sums.Add(1, *ops::Cast(Pair(1, -1), dtype)).ok());
    const absl::StatusOr<absl::Span<Tensor>> totals = sums.Take(0, 2);
    ASSERT_TRUE(totals.ok());
    EXPECT_FALSE((*totals)[0].defined());
    EXPECT_EQ((*totals)[1].dtype(), dtype);
    ExpectPair(*ops::Cast((*totals)[1], DType::kF32), 4096, -4096);
  }
}

TEST(GradientSumsTest, WhatOthersSeeStaysAsItIs) {
  const Tensor copy = Pair(1, 2);
  const Tensor viewed = Pair(3, 4);
  const Tensor view = viewed.View({1}, {1}, 1);
  const Buffer bytes = Pair(5, 6).AsBuffer();
  GradientSums sums(2);
  for (const Tensor& first : {copy, viewed, *Tensor::FromBuffer({2}, DType::kF32, bytes)}) {
    ASSERT_TRUE(sums.Add(1, Tensor(first)).ok());
    ASSERT_TRUE(sums.Add(1, Pair(10, 20)).ok());
    ASSERT_TRUE(sums.Add(1, Pair(100, 200)).ok());
    ExpectPair(*sums.Take(1), first.data<float>()[0] + 110, first.data<float>()[1] + 220);
  }
  ExpectPair(copy, 1, 2);
  EXPECT_EQ(view.data<float>()[0], 4);
  EXPECT_EQ(reinterpret_cast<const float*>(bytes.data())[1], 6);
}

TEST(GradientSumsTest, OtherShapesAreRefused) {
  GradientSums sums(2);
  ASSERT_TRUE(sums.Add(1, Pair(1, 2)).ok());
  EXPECT_EQ(sums.Add(1, Tensor::Scalar(1.0f)).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd
