// Tests of the optimizers of GPUs that need an emulated device, because a GPU does not show the
// mistake.

#include "core/device_kernels/emulated/optim_kernels.h"

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/kernel_table.h"
#include "core/base/stream.h"
#include "core/device/emulated/emulated_device.h"
#include "core/optim/dense/optim_kernels.h"
#include "gtest/gtest.h"
#include "kernels/cuda/optim_launch.h"
#include "kernels/optim/arrays.h"
#include "tests/core/device_kernels/device_memory.h"
#include "tests/core/device_kernels/optim_batches.h"

namespace psd {
namespace {

using kernels::OptimArrays;
using kernels::OptimBatch;
using testing::BatchOf;
using testing::DeviceCopy;
using testing::DeviceWith;

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
  EXPECT_EQ(optim::CpuOptimKernels().Names().size(), 7u);
  ExpectEverywhere(optim::kSgd);
  ExpectEverywhere(optim::kAdam);
  ExpectEverywhere(optim::kAdagrad);
  ExpectEverywhere(optim::kAdadelta);
  ExpectEverywhere(optim::kAdamax);
  ExpectEverywhere(optim::kRmsProp);
  ExpectEverywhere(optim::kRprop);
}

}  // namespace
}  // namespace psd
