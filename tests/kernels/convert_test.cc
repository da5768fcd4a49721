#include "kernels/convert.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace psd::kernels {
namespace {

const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

// Rounds `x` to `digits` binary digits with ties to even. The smallest exponent is `least`.
double Rounded(double x, int digits, int least) {
  if (x == 0) return x;
  const int unit = std::max(std::ilogb(x) - digits + 1, least - digits + 1);
  return std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
}

TEST(ConvertTest, EveryHalfComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    const float value = FromHalf(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FromHalf(ToHalf(value))));
      continue;
    }
    ASSERT_EQ(ToHalf(value).bits, half.bits);
  }
  EXPECT_EQ(FromHalf(Half{0x3c00}), 1.0f);
  EXPECT_EQ(FromHalf(Half{0xc000}), -2.0f);
  EXPECT_EQ(FromHalf(Half{0x7bff}), 65504.0f);
  EXPECT_EQ(FromHalf(Half{0x0001}), 0x1p-24f);
}

TEST(ConvertTest, EveryBFloat16ComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    const float wide = FromBFloat16(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(wide))));
      continue;
    }
    ASSERT_EQ(ToBFloat16(wide).bits, value.bits);
  }
}

TEST(ConvertTest, RoundsToNearestEven) {
  // The floats have all signs and exponents, and many patterns of low digits.
  for (uint64_t step = 0; step < (uint64_t{1} << 32); step += 65521 * 3) {
    const float x = BitsFloat(static_cast<uint32_t>(step));
    if (std::isnan(x) || std::isinf(x)) continue;
    const double half = Rounded(x, 11, -14);
    const double expected = std::fabs(half) > 65504 ? std::copysign(kInf, half) : half;
    ASSERT_EQ(FromHalf(ToHalf(x)), expected) << x;
    const float brain = static_cast<float>(Rounded(x, 8, -126));
    ASSERT_EQ(FromBFloat16(ToBFloat16(x)), brain) << x;
  }
  EXPECT_EQ(FromBFloat16(ToBFloat16(1.00390625f)), 1.0f);       // a tie is rounded down to even
  EXPECT_EQ(FromBFloat16(ToBFloat16(1.01171875f)), 1.015625f);  // a tie is rounded up to even
  EXPECT_EQ(FromHalf(ToHalf(65519.0f)), 65504.0f);
  EXPECT_EQ(FromHalf(ToHalf(65520.0f)), kInf);
}

TEST(ConvertTest, SpecialNumbers) {
  EXPECT_EQ(FromHalf(ToHalf(-kInf)), -kInf);
  EXPECT_EQ(FromBFloat16(ToBFloat16(kInf)), kInf);
  EXPECT_TRUE(std::isnan(FromHalf(ToHalf(kNan))));
  EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(kNan))));
  EXPECT_TRUE(std::isnan(FromHalf(ToHalf(BitsFloat(0x7f800001)))));
  EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(BitsFloat(0xff800001)))));
  EXPECT_EQ(ToHalf(-0.0f).bits, 0x8000);
}

TEST(ConvertTest, FloatsToIntegersSaturate) {
  EXPECT_EQ(Convert<int32_t>(2.9), 2);
  EXPECT_EQ(Convert<int32_t>(-2.9), -2);
  EXPECT_EQ(Convert<int32_t>(1e20), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(Convert<int32_t>(-1e20f), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(Convert<int64_t>(0x1p63), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Convert<int64_t>(-kInf), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Convert<uint8_t>(255.5), 255);
  EXPECT_EQ(Convert<uint8_t>(-0.5), 0);
  EXPECT_EQ(Convert<uint8_t>(300.0f), 255);
  EXPECT_EQ(Convert<int64_t>(kNan), 0);
}

TEST(ConvertTest, Others) {
  EXPECT_TRUE(Convert<bool>(kNan));
  EXPECT_FALSE(Convert<bool>(-0.0));
  EXPECT_TRUE(Convert<bool>(int64_t{256}));
  EXPECT_EQ(Convert<int32_t>(int64_t{1} << 33), 0);
  EXPECT_EQ(Convert<float>(Half{0x3c00}), 1.0f);
  EXPECT_EQ(Convert<int32_t>(ToBFloat16(5.0f)), 5);
  EXPECT_EQ(Convert<Half>(1.0).bits, 0x3c00);
  EXPECT_EQ(Convert<BFloat16>(int64_t{1}).bits, 0x3f80);
}

}  // namespace
}  // namespace psd::kernels
