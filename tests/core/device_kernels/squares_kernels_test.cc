// The sums of squares of gradients on a device, which is an emulated one or a GPU
// (kernel_device.h).

#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/base/stream.h"
#include "core/optim/dense/optim_kernels.h"
#include "gtest/gtest.h"
#include "kernels/convert.h"
#include "kernels/optim/arrays.h"
#include "tests/core/device_kernels/device_memory.h"
#include "tests/core/device_kernels/kernel_device.h"
#include "tests/core/device_kernels/optim_batches.h"

namespace psd {
namespace {

using kernels::BFloat16;
using kernels::Convert;
using kernels::Half;
using kernels::OptimArrays;
using testing::BatchOf;
using testing::DeviceCopy;
using testing::kInfinity;

class DeviceSquaresTest : public testing::KernelDeviceTest {
 protected:
  DeviceSquaresTest() : KernelDeviceTest(testing::DeviceOptimizers()) {}

  // The gradients begin at elements 0 to 3 of their blocks.
  template <typename P>
  double SumOfSquares(const std::vector<std::vector<P>>& gradients) {
    std::vector<DeviceCopy<P>> copies;
    std::vector<OptimArrays> arrays;
    for (const auto& each : gradients) {
      copies.emplace_back(*device_, each, copies.size() % 4);
      arrays.emplace_back();
      arrays.back().gradient = copies.back().data();
      arrays.back().size = each.size();
    }
    size_t parts = 0;
    for (const OptimArrays& each : arrays)
      parts += (each.size + kernels::kOptimPartElements - 1) / kernels::kOptimPartElements;
    const DeviceCopy<double> sums(*device_, std::vector<double>(parts, std::nan("")));
    const absl::Status added = device_->kernels().Find(optim::kSumSquares)(
        &device_->default_stream(), BatchOf<P>(arrays, {}), sums.data());
    EXPECT_TRUE(added.ok()) << added;
    const std::vector<double> all = sums.Read();
    return std::accumulate(all.begin(), all.end(), 0.0);
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceSquaresTest, ::testing::Values(0, 1, 2));

TEST_P(DeviceSquaresTest, SumsAreExactWhereDoublesAre) {
  std::vector<std::vector<float>> gradients;
  double want = 0;
  for (const size_t size : {0, 1, 5, 1024, 1025, 3000}) {
    gradients.emplace_back();
    for (size_t i = 0; i < size; ++i) {
      gradients.back().push_back(static_cast<float>(i % 100) - 50);
      want += gradients.back()[i] * gradients.back()[i];
    }
  }
  EXPECT_EQ(SumOfSquares(gradients), want);
  EXPECT_EQ(SumOfSquares<float>({{}}), 0);
  EXPECT_EQ(SumOfSquares<float>({}), 0);
}

TEST_P(DeviceSquaresTest, ASumIsFiniteIfAllElementsAre) {
  const float most = std::numeric_limits<float>::max();
  const auto with = [&](float odd) {
    std::vector<std::vector<float>> gradients(2, std::vector<float>(2000, most));
    gradients[1][1999] = odd;
    return SumOfSquares(gradients);
  };
  EXPECT_TRUE(std::isfinite(with(most)));
  EXPECT_TRUE(std::isinf(with(-static_cast<float>(kInfinity))));
  EXPECT_TRUE(std::isnan(with(std::nanf(""))));
}

TEST_P(DeviceSquaresTest, AllDTypesOfParametersHaveSums) {
  EXPECT_EQ(SumOfSquares<BFloat16>({{Convert<BFloat16>(3.0f)}}), 9);
  EXPECT_EQ(SumOfSquares<Half>({{Convert<Half>(-2.0f)}}), 4);
  EXPECT_EQ(SumOfSquares<double>({{0.5}}), 0.25);
}

}  // namespace
}  // namespace psd
