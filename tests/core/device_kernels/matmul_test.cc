// Matrix products of devices (kernel_device.h) against the CPU's.

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/device.h"
#include "core/tensor/dtype.h"
#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/matmul.h"
#include "core/tensor/ops/shape_ops.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/device_kernels/kernel_device.h"

namespace psd {
namespace {

class DeviceMatmulTest : public testing::KernelDeviceTest {
 protected:
  DeviceMatmulTest() : KernelDeviceTest(testing::DeviceOperators()) {}

  Tensor There(const Tensor& x) { return x.Clone(&device_->memory()).value(); }
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceMatmulTest, ::testing::Values(0, 1));

Tensor Numbers(DType dtype, const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> all(static_cast<size_t>(shape.NumElements()));
  for (double& each : all) each = static_cast<double>(random() % 20001) / 1000 - 10;
  return *ops::Cast(Tensor::Of<double>(shape, std::move(all)), dtype);
}

std::vector<double> Doubles(const Tensor& x) {
  const Tensor wide = *ops::Cast(x.ToHost().value(), DType::kF64);
  return {wide.data<double>(), wide.data<double>() + wide.NumElements()};
}

// The two are sums of the same `terms` products in different orders, or with fused multiply-adds.
// The factors are at most 10, and so is what is added to the sum.
void ExpectNear(const absl::StatusOr<Tensor>& there, const absl::StatusOr<Tensor>& here,
                int64_t terms) {
  ASSERT_TRUE(there.ok()) << there.status();
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_FALSE(there->OnHost());
  ASSERT_EQ(there->dtype(), here->dtype());
  ASSERT_EQ(there->shape(), here->shape());
  const double epsilon = here->dtype() == DType::kF32 ? std::numeric_limits<float>::epsilon()
                                                      : std::numeric_limits<double>::epsilon();
  const auto count = static_cast<double>(terms + 1);
  const std::vector<double> got = Doubles(*there), want = Doubles(*here);
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_LE(std::abs(got[i] - want[i]), count * epsilon * 100 * count) << i;
}

TEST_P(DeviceMatmulTest, ProductsAreNearTheCpus) {
  const int64_t sizes[][3] = {{1, 1, 1}, {2, 3, 4}, {17, 5, 33}, {64, 10, 129}, {1, 256, 100}};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const auto& [m, n, k] : sizes) {
      for (const bool turn_a : {false, true}) {
        for (const bool turn_b : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << m << " " << n << " " << k << " " << turn_a << turn_b);
          const Tensor a = Numbers(dtype, turn_a ? Shape{k, m} : Shape{m, k}, 1);
          const Tensor b = Numbers(dtype, turn_b ? Shape{n, k} : Shape{k, n}, 2);
          ExpectNear(ops::Matmul(There(a), There(b), turn_a, turn_b),
                     ops::Matmul(a, b, turn_a, turn_b), k);
        }
      }
    }
  }
}

// Parts of larger matrices, whose first elements are aligned to 4 bytes only.
TEST_P(DeviceMatmulTest, ViewsAreMultipliedWithoutACopy) {
  const auto turned = [](const Tensor& x) { return *ops::Transpose(x, 0, 1); };
  const auto inner = [](const Tensor& x) { return *ops::Slice(*ops::Slice(x, 1, 1, 8), 0, 2, 9); };
  const Tensor a = Numbers(DType::kF32, {9, 11}, 1), b = Numbers(DType::kF32, {11, 9}, 2);
  const Tensor a_there = There(a), b_there = There(b);
  ExpectNear(ops::Matmul(turned(a_there), turned(b_there)), ops::Matmul(turned(a), turned(b)), 9);
  ExpectNear(ops::Matmul(turned(a_there), b_there, true), ops::Matmul(turned(a), b, true), 11);
  ExpectNear(ops::Matmul(inner(a_there), inner(b_there)), ops::Matmul(inner(a), inner(b)), 7);
  ExpectNear(ops::Matmul(turned(inner(a_there)), inner(b_there), false, true),
             ops::Matmul(turned(inner(a)), inner(b), false, true), 7);
}

TEST_P(DeviceMatmulTest, LinearAddsItsBias) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = Numbers(dtype, {5, 7}, 1), w = Numbers(dtype, {3, 7}, 2);
    const Tensor b = Numbers(dtype, {3}, 3);
    ExpectNear(ops::Linear(There(x), There(w), There(b)), ops::Linear(x, w, b), 7);
    ExpectNear(ops::Linear(There(x), There(w), Tensor()), ops::Linear(x, w, Tensor()), 7);
  }
}

TEST_P(DeviceMatmulTest, ASumOfNothingIsZero) {
  const Tensor tall = Tensor::Of<float>({4, 0}, {}), wide = Tensor::Of<float>({0, 3}, {});
  const Tensor bias = Numbers(DType::kF32, {4}, 1);
  ExpectNear(ops::Matmul(There(tall), There(wide)), ops::Matmul(tall, wide), 0);
  ExpectNear(ops::Matmul(There(wide), There(tall), true, true), ops::Matmul(wide, tall, true, true),
             0);
  const Tensor some = Numbers(DType::kF32, {3, 2}, 2);
  ExpectNear(ops::Matmul(There(wide), There(some)), ops::Matmul(wide, some), 0);
  ExpectNear(ops::Linear(There(tall), There(tall), There(bias)), ops::Linear(tall, tall, bias), 0);
}

TEST_P(DeviceMatmulTest, WhatIsNotANumberStaysSo) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const Tensor a = Tensor::Of<float>({2, 2}, {static_cast<float>(nan), 1, 2, 3});
  const Tensor b = Tensor::Of<float>({2, 1}, {1, static_cast<float>(infinity)});
  const std::vector<double> c = Doubles(ops::Matmul(There(a), There(b)).value());
  EXPECT_TRUE(std::isnan(c[0]));
  EXPECT_EQ(c[1], infinity);
}

// TF32 has 10 bits behind the point, so it rounds 1 + 2^-11. The sizes are multiples of a tensor
// core's tiles: a library that may use TF32 does so for matrices like these, and perhaps not for a
// vector.
TEST_P(DeviceMatmulTest, FactorsAreNotRounded) {
  constexpr int64_t kSize = 256, kTerms = 64;
  const float x = 1 + std::ldexp(1.0f, -11);
  const Tensor a =
      Tensor::Of<float>({kSize, kTerms}, std::vector<float>(size_t{kSize * kTerms}, x));
  std::vector<float> ones(size_t{kTerms * kSize}, 0);  // one in each column
  for (size_t column = 0; column < kSize; ++column) ones[column % kTerms * kSize + column] = 1;
  const Tensor b = Tensor::Of<float>({kTerms, kSize}, std::move(ones));
  const Tensor products = ops::Matmul(There(a), There(b)).value();
  for (const double each : Doubles(products)) ASSERT_EQ(each, x);
  // The other factor is not rounded either.
  const Tensor turned = ops::Matmul(There(b), There(a), true, true).value();
  for (const double each : Doubles(turned)) ASSERT_EQ(each, x);
}

TEST_P(DeviceMatmulTest, EqualProductsHaveEqualBits) {
  const Tensor a = There(Numbers(DType::kF32, {65, 300}, 1));
  const Tensor b = There(Numbers(DType::kF32, {300, 33}, 2));
  const std::vector<double> first = Doubles(ops::Matmul(a, b).value());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Doubles(ops::Matmul(a, b).value()), first);
}

}  // namespace
}  // namespace psd
