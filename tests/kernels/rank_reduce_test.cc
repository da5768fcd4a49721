#include "kernels/rank_reduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/convert.h"
#include "tests/kernels/on_every_target.h"

namespace psd::kernels {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename T>
std::vector<const T*> Pointers(const std::vector<std::vector<T>>& runs, size_t offset = 0) {
  std::vector<const T*> pointers;
  for (const std::vector<T>& run : runs) pointers.push_back(run.data() + offset);
  return pointers;
}

// Returns numbers of very different sizes, whose sum depends on the order.
template <typename T>
std::vector<std::vector<T>> UnevenRuns(size_t ranks, size_t count) {
  std::vector<std::vector<T>> runs(ranks, std::vector<T>(count));
  for (size_t rank = 0; rank < ranks; ++rank)
    for (size_t i = 0; i < count; ++i)
      runs[rank][i] =
          static_cast<T>(std::ldexp(1.0 + 0.37 * static_cast<double>((i * 31 + rank * 17) % 29),
                                    static_cast<int>((i * 7 + rank * 11) % 40) - 20));
  return runs;
}

template <typename T>
bool SameBits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
class RankReduceTest : public ::testing::Test {};
using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(RankReduceTest, Floats);

TYPED_TEST(RankReduceTest, DDP_31_EveryElementIsSummedInTheOrderOfRanks) {
  using T = TypeParam;
  OnEveryTarget([] {
    for (const size_t ranks : {1, 2, 3, 4, 7}) {
      for (const size_t count : kLengths) {
        for (const size_t offset : kOffsets) {
          const auto runs = UnevenRuns<T>(ranks, count + offset);
          std::vector<T> out(count + 1, T{-99});
          ReduceRanks(RankReduction::kSum, Pointers(runs, offset).data(), ranks, T{3}, out.data(),
                      count);
          for (size_t i = 0; i < count; ++i) {
            T expected = runs[0][i + offset];
            for (size_t rank = 1; rank < ranks; ++rank) expected += runs[rank][i + offset];
            ASSERT_TRUE(SameBits<T>(out[i], expected / T{3})) << ranks << " " << count << " " << i;
          }
          EXPECT_EQ(out[count], T{-99}) << "nothing is written behind the end";
        }
      }
    }
  });
}

TYPED_TEST(RankReduceTest, TheResultMayReplaceARun) {
  using T = TypeParam;
  OnEveryTarget([] {
    auto runs = UnevenRuns<T>(3, 33);
    std::vector<T> apart(33);
    ReduceRanks(RankReduction::kSum, Pointers(runs).data(), 3, T{1}, apart.data(), 33);
    ReduceRanks(RankReduction::kSum, Pointers(runs).data(), 3, T{1}, runs[1].data(), 33);
    EXPECT_EQ(runs[1], apart);
  });
}

TYPED_TEST(RankReduceTest, MinAndMaxKeepNaNAndTheSignOfTheFirstZero) {
  using T = TypeParam;
  const T nan = std::numeric_limits<T>::quiet_NaN();
  OnEveryTarget([nan] {
    // Twenty elements, so that there are full vectors and a rest.
    std::vector<std::vector<T>> runs(3, std::vector<T>(20));
    for (size_t i = 0; i < 20; ++i) {
      const T numbers[5][3] = {{1, -2, 3}, {nan, 1, 2}, {1, nan, 2}, {1, 2, nan}, {T{-0.0}, 0, 0}};
      for (size_t rank = 0; rank < 3; ++rank) runs[rank][i] = numbers[i % 5][rank];
    }
    std::vector<T> least(20), most(20);
    ReduceRanks(RankReduction::kMin, Pointers(runs).data(), 3, T{1}, least.data(), 20);
    ReduceRanks(RankReduction::kMax, Pointers(runs).data(), 3, T{1}, most.data(), 20);
    for (size_t i = 0; i < 20; ++i) {
      if (i % 5 == 0) {
        EXPECT_EQ(least[i], -2);
        EXPECT_EQ(most[i], 3);
      } else if (i % 5 == 4) {
        EXPECT_TRUE(std::signbit(least[i]) && std::signbit(most[i]));
      } else {
        EXPECT_TRUE(std::isnan(least[i]) && std::isnan(most[i])) << i;
      }
    }
  });
}

TEST(RankReduceTest, HalvesAreSummedAsFloatsAndRoundedOnce) {
  OnEveryTarget([] {
    for (const size_t count : kLengths) {
      // 60000 + 60000 is too large for a half, their mean is not; 2048 + 1 + 1 needs the float.
      const float numbers[2][3] = {{60000, 60000, 0}, {2048, 1, 1}};
      std::vector<std::vector<Half>> halves(3, std::vector<Half>(count));
      std::vector<std::vector<BFloat16>> bfloats(3, std::vector<BFloat16>(count));
      for (size_t rank = 0; rank < 3; ++rank) {
        for (size_t i = 0; i < count; ++i) {
          halves[rank][i] = ToHalf(numbers[i % 2][rank]);
          bfloats[rank][i] = ToBFloat16(numbers[i % 2][rank]);
        }
      }
      std::vector<Half> half(count);
      std::vector<BFloat16> bfloat(count);
      ReduceRanks(RankReduction::kSum, Pointers(halves).data(), 3, 3, half.data(), count);
      ReduceRanks(RankReduction::kSum, Pointers(bfloats).data(), 3, 1, bfloat.data(), count);
      for (size_t i = 0; i < count; ++i) {
        float sum = 0;
        for (size_t rank = 0; rank < 3; ++rank) sum += FromHalf(halves[rank][i]);
        EXPECT_EQ(half[i].bits, ToHalf(sum / 3).bits) << i;
        sum = 0;
        for (size_t rank = 0; rank < 3; ++rank) sum += FromBFloat16(bfloats[rank][i]);
        EXPECT_EQ(bfloat[i].bits, ToBFloat16(sum).bits) << i;
      }
    }
  });
}

TEST(RankReduceTest, HalvesKeepNaNInMinAndMax) {
  OnEveryTarget([] {
    const std::vector<std::vector<Half>> runs = {std::vector<Half>(17, ToHalf(1)),
                                                 std::vector<Half>(17, ToHalf(kNaN))};
    std::vector<Half> out(17);
    ReduceRanks(RankReduction::kMax, Pointers(runs).data(), 2, 1, out.data(), 17);
    for (const Half& x : out) EXPECT_TRUE(std::isnan(FromHalf(x)));
  });
}

template <typename T>
void TestIntegers() {
  constexpr T kMost = std::numeric_limits<T>::max();
  const std::vector<std::vector<T>> runs = {{1, kMost, -5}, {2, 1, 7}, {-9, 0, -6}};
  std::vector<T> out(3);
  ReduceRanks(RankReduction::kSum, Pointers(runs).data(), 3, out.data(), 3);
  EXPECT_EQ(out, (std::vector<T>{-6, std::numeric_limits<T>::min(), -4}));
  ReduceRanks(RankReduction::kMin, Pointers(runs).data(), 3, out.data(), 3);
  EXPECT_EQ(out, (std::vector<T>{-9, 0, -6}));
  ReduceRanks(RankReduction::kMax, Pointers(runs).data(), 3, out.data(), 3);
  EXPECT_EQ(out, (std::vector<T>{2, kMost, 7}));
}

TEST(RankReduceTest, IntegersWrapAround) {
  TestIntegers<int32_t>();
  TestIntegers<int64_t>();
}

}  // namespace
}  // namespace psd::kernels
