// What only an emulated device shows of the optimizers of GPUs, and their sums of squares.

#include "core/device_kernels/emulated/optim_kernels.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/kernel_table.h"
#include "core/base/stream.h"
#include "core/device/emulated/device_array.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device/emulated/emulated_stream.h"
#include "core/optim/dense/optim_kernels.h"
#include "gtest/gtest.h"
#include "kernels/convert.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/optim_launch.h"
#include "kernels/cuda/optim_step.h"
#include "kernels/optim/arrays.h"
#include "tests/core/device_kernels/device_memory.h"
#include "tests/core/device_kernels/optim_batches.h"

namespace psd {
namespace {

using kernels::BFloat16;
using kernels::Convert;
using kernels::Half;
using kernels::OptimArrays;
using kernels::OptimBatch;
using testing::BatchOf;
using testing::DeviceCopy;
using testing::DeviceWith;
using testing::kInfinity;

// A GPU loads four f32 at once, and fails if they are not aligned.
void StepParameterThatIsNotAligned() {
  const auto device = DeviceWith(emulated::OptimKernels(), 0);
  const std::vector<float> elements(8);
  const DeviceCopy<float> parameter(*device, elements, 1), gradient(*device, elements);
  std::vector<OptimArrays> arrays(1);
  arrays[0].parameter = parameter.data();
  arrays[0].next = parameter.data();
  arrays[0].gradient = gradient.data();
  arrays[0].size = elements.size();
  device->kernels().Find(optim::kSgd)(&device->default_stream(), kernels::SgdOptions{},
                                      BatchOf<float>(arrays, {}));
  parameter.Read();
}

TEST(EmulatedOptimDeathTest, AParameterThatIsNotAlignedEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(StepParameterThatIsNotAligned(),
               "the operation sgd on stream 0 of emu:0 accessed 16 bytes at once, but element");
}

// ---- the lists of kernels

// Whether a GPU has the kernel of this name.
template <typename Options, typename = void>
struct IsOnGpus : std::false_type {};
template <typename Options>
struct IsOnGpus<Options, std::void_t<decltype(kernels::cuda::LaunchStep(
                             std::declval<const Options&>(), std::declval<const OptimBatch&>(),
                             nullptr, nullptr))>> : std::true_type {};

template <typename Options>
void ExpectEverywhere(const optim::OptimKernelName<Options>& name) {
  EXPECT_NE(emulated::OptimKernels().Find(name), nullptr) << name.name;
  EXPECT_TRUE(IsOnGpus<Options>::value) << name.name;
}

TEST(EmulatedOptimListTest, GpusAndEmulatedDevicesHaveTheKernelsOfTheCpu) {
  EXPECT_EQ(emulated::OptimKernels().Names(), optim::CpuOptimKernels().Names());
  EXPECT_EQ(optim::CpuOptimKernels().Names().size(), 7u);
  ExpectEverywhere(optim::kSgd);
  ExpectEverywhere(optim::kAdam);
  ExpectEverywhere(optim::kAdagrad);
  ExpectEverywhere(optim::kAdadelta);
  ExpectEverywhere(optim::kAdamax);
  ExpectEverywhere(optim::kRmsProp);
  ExpectEverywhere(optim::kRprop);
}

// ---- the sum of squares

template <typename P>
using Gradients = std::vector<kernels::cuda::OptimEntry<P, DeviceArray>>;

template <typename P>
struct SquaresBody {
  void operator()(size_t chunk, const Gradients<P>& table,
                  const DeviceArray<double>& partials) const {
    double shared[kernels::cuda::kBlockThreads];
    kernels::cuda::SumSquaresOfChunk(kernels::cuda::SerialBlock(chunk), table, table.size(), chunk,
                                     shared, partials);
  }
};

struct PartialsBody {
  void operator()(size_t block, const DeviceArray<double>& partials, size_t count,
                  const DeviceArray<double>& out) const {
    double shared[kernels::cuda::kBlockThreads];
    kernels::cuda::SumPartials(kernels::cuda::SerialBlock(block), partials, count, shared, out);
  }
};

template <typename P>
double SumOfSquares(EmulatedDevice& device, const std::vector<std::vector<P>>& gradients) {
  std::vector<DeviceCopy<P>> copies;
  std::vector<OptimArrays> arrays;
  for (const auto& each : gradients) {
    copies.emplace_back(device, each, copies.size() % 4);
    arrays.emplace_back();
    arrays.back().gradient = copies.back().data();
    arrays.back().size = each.size();
  }
  const OptimBatch batch = BatchOf<P>(arrays, {});
  Gradients<P> table(arrays.size());
  kernels::cuda::MakeEntries<P, DeviceArray>(
      batch,
      [](auto* address, size_t size) {
        // Only the gradients are there.
        return DeviceArray<std::remove_pointer_t<decltype(address)>>(address,
                                                                     address == nullptr ? 0 : size);
      },
      [&](size_t k, const auto& entry) { table[k] = entry; });
  const size_t chunks = kernels::cuda::ChunksOf(batch);
  const DeviceCopy<double> partials(device, std::vector<double>(chunks, std::nan("")));
  const DeviceCopy<double> sum(device, {-1});
  EmulatedStream& stream = device.default_stream();
  EXPECT_TRUE(stream
                  .Launch("squares", chunks, SquaresBody<P>(), table,
                          DeviceArray<double>(partials.data(), chunks))
                  .ok());
  EXPECT_TRUE(stream
                  .Launch("partials", 1, PartialsBody(),
                          DeviceArray<double>(partials.data(), chunks), chunks,
                          DeviceArray<double>(sum.data(), 1))
                  .ok());
  return sum.Read()[0];
}

class EmulatedNormTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  const std::shared_ptr<EmulatedDevice> device_ = DeviceWith(KernelTable(), GetParam());
};

INSTANTIATE_TEST_SUITE_P(Seeds, EmulatedNormTest, ::testing::Values(0, 1, 2));

TEST_P(EmulatedNormTest, SumsOfSquaresAreExactWhereDoublesAre) {
  std::vector<std::vector<float>> gradients;
  double want = 0;
  for (const size_t size : {0, 1, 5, 1024, 1025, 3000}) {
    gradients.emplace_back();
    for (size_t i = 0; i < size; ++i) {
      gradients.back().push_back(static_cast<float>(i % 100) - 50);
      want += gradients.back()[i] * gradients.back()[i];
    }
  }
  EXPECT_EQ(SumOfSquares(*device_, gradients), want);
  EXPECT_EQ(SumOfSquares<float>(*device_, {}), 0);
  EXPECT_EQ(SumOfSquares<float>(*device_, {{}}), 0);
}

TEST_P(EmulatedNormTest, ASumOfSquaresIsFiniteIfAllElementsAre) {
  const float most = std::numeric_limits<float>::max();
  const auto with = [&](float odd) {
    std::vector<std::vector<float>> gradients(2, std::vector<float>(2000, most));
    gradients[1][1999] = odd;
    return SumOfSquares(*device_, gradients);
  };
  EXPECT_TRUE(std::isfinite(with(most)));
  EXPECT_TRUE(std::isinf(with(-static_cast<float>(kInfinity))));
  EXPECT_TRUE(std::isnan(with(std::nanf(""))));
  EXPECT_EQ(SumOfSquares<BFloat16>(*device_, {{Convert<BFloat16>(3.0f)}}), 9);
  EXPECT_EQ(SumOfSquares<Half>(*device_, {{Convert<Half>(-2.0f)}}), 4);
  EXPECT_EQ(SumOfSquares<double>(*device_, {{0.5}}), 0.25);
}

}  // namespace
}  // namespace psd
