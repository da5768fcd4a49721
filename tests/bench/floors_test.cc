#include "bench/floors.h"

#include "gtest/gtest.h"

namespace psd::bench {
namespace {

constexpr size_t kSize = 160;

TEST(Floors, DoTheirMath) {
  MappedFloats a(kSize), b(kSize), c(kSize), d(kSize);
  double sum = 0;
  double product = 0;
  for (size_t i = 0; i < kSize; ++i) {
    sum += a.data()[i];
    product += double{a.data()[i]} * double{b.data()[i]};
  }
  EXPECT_NEAR(StreamRead(a.data(), kSize), sum, 1e-3);
  EXPECT_NEAR(StepMath(a.data(), b.data(), d.data(), kSize), product, 1e-3);
  EXPECT_EQ(d.data()[3], 0.5f * b.data()[3]);
}

TEST(Floors, StreamsWriteWhatTheySay) {
  MappedFloats a(kSize), b(kSize), c(kSize), d(kSize);
  const float gradient = 1e6f;  // large enough to have an effect after the factor 1e-9
  for (size_t i = 0; i < kSize; ++i) b.data()[i] = gradient;
  const float before = a.data()[5];
  StreamR2W1(a.data(), b.data(), kSize);
  EXPECT_FLOAT_EQ(a.data()[5], before - 1e-3f);
  const float c_before = c.data()[5];
  StreamR4W3(a.data(), b.data(), c.data(), d.data(), kSize);
  EXPECT_FLOAT_EQ(c.data()[5], c_before + 1e-3f);
}

}  // namespace
}  // namespace psd::bench
