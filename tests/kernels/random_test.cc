#include "kernels/random.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace psd::kernels {
namespace {

TEST(PhiloxTest, KnownAnswer) {
  // The expected numbers are from Random123's kat_vectors.
  EXPECT_EQ(Philox(0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(RandomTest, SplittingTheWorkChangesNothing) {
  std::vector<double> whole(101), parts(101);
  FillUniform(42, 0, -1, 1, whole.data(), whole.size());
  FillUniform(42, 0, -1, 1, parts.data(), 37);
  FillUniform(42, 37, -1, 1, parts.data() + 37, parts.size() - 37);
  EXPECT_EQ(whole, parts);
  FillNormal(42, 0, 0, 1, whole.data(), whole.size());
  FillNormal(42, 0, 0, 1, parts.data(), 50);
  FillNormal(42, 50, 0, 1, parts.data() + 50, parts.size() - 50);
  EXPECT_EQ(whole, parts);
}

TEST(RandomTest, UniformFillsItsRange) {
  std::vector<float> x(100'000);
  FillUniform(7, 0, 2, 5, x.data(), x.size());
  double sum = 0, squares = 0;
  for (float value : x) {
    ASSERT_GE(value, 2);
    ASSERT_LT(value, 5);
    sum += value;
    squares += (value - 3.5) * (value - 3.5);
  }
  EXPECT_NEAR(sum / 1e5, 3.5, 0.01);
  EXPECT_NEAR(squares / 1e5, 0.75, 0.01);
  FillUniform(7, 0, 3, 3, x.data(), 10);
  EXPECT_EQ(x[9], 3);
}

TEST(RandomTest, UpperEndIsNeverMet) {
  // In floats, the range holds two numbers, and half of the exact values round to its upper end.
  std::vector<float> x(1000);
  const float high = std::nextafter(std::nextafter(1.0f, 2.0f), 2.0f);
  FillUniform(1, 0, 1, high, x.data(), x.size());
  for (float value : x) ASSERT_LT(value, high);
}

TEST(RandomTest, NormalHasItsMomentsAndTails) {
  std::vector<double> x(200'000);
  FillNormal(3, 0, 10, 2, x.data(), x.size());
  double sum = 0, squares = 0, cubes = 0;
  int within_1_96 = 0, beyond_4 = 0;
  for (double value : x) {
    const double z = (value - 10) / 2;
    sum += z;
    squares += z * z;
    cubes += z * z * z;
    within_1_96 += std::fabs(z) < 1.959964;
    beyond_4 += std::fabs(z) > 4;
  }
  const double n = static_cast<double>(x.size());
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(cubes / n, 0, 0.03);
  EXPECT_NEAR(within_1_96 / n, 0.95, 0.002);
  EXPECT_GT(beyond_4, 1);  // the expected count is 12.7
  EXPECT_LT(beyond_4, 40);
}

TEST(RandomTest, SeedsDiffer) {
  double a[4], b[4];
  FillUniform(1, 0, 0, 1, a, 4);
  FillUniform(uint64_t{1} << 32, 0, 0, 1, b, 4);
  for (int i = 0; i < 4; ++i) EXPECT_NE(a[i], b[i]);
}

// Programs that are stored elsewhere rely on these bits.
TEST(RandomTest, GoldenNumbers) {
  double uniform[3], normal[3];
  FillUniform(2026, 5, -1, 1, uniform, 3);
  FillNormal(2026, 5, 0, 1, normal, 3);
  const double expected_uniform[] = {0x1.bb34871b9cdaap-1, 0x1.dea1874f5eb0cp-2,
                                     0x1.33df47472fee4p-2};
  const double expected_normal[] = {0x1.7f428ae5c4a38p+0, 0x1.3f850a2991ffep-1,
                                    0x1.8b79c6a581b36p-2};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(uniform[i], expected_uniform[i]);
    EXPECT_EQ(normal[i], expected_normal[i]);
  }
}

}  // namespace
}  // namespace psd::kernels
