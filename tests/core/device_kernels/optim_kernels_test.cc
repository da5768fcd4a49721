// The optimizers of GPUs, run on an emulated device or on a GPU (kernel_device.h), against the
// CPU's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/device.h"
#include "core/base/kernel_table.h"
#include "core/base/stream.h"
#include "core/optim/dense/optim_kernels.h"
#include "gtest/gtest.h"
#include "kernels/convert.h"
#include "kernels/cuda/optim_step.h"
#include "kernels/optim/arrays.h"
#include "tests/core/device_kernels/device_memory.h"
#include "tests/core/device_kernels/kernel_device.h"
#include "tests/core/device_kernels/optim_batches.h"
#include "tests/kernels/cpu_fuses.h"

namespace psd {
namespace {

using kernels::BFloat16;
using kernels::Convert;
using kernels::Half;
using kernels::OptimArrays;
using kernels::OptimBatch;
using kernels::cuda::NumberOf;
using testing::BatchOf;
using testing::CpuFuses;
using testing::DeviceCopy;
using testing::KernelsLaunched;
using testing::kInfinity;
using testing::Run;

// Where the CPU's kernels do not fuse, each of the few fused operations of an element makes a
// difference of a rounding.
double Tolerance(bool narrow, bool is_double) {
  if (CpuFuses()) return 0;
  return narrow ? 1.0 / 64 : is_double ? 1e-13 : 1e-5;
}

template <typename T>
void ExpectSame(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  const double tolerance = Tolerance(sizeof(T) == 2, sizeof(T) == 8);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double a = Convert<double>(got[i]), b = Convert<double>(want[i]);
    if (std::isnan(b)) {
      ASSERT_TRUE(std::isnan(a)) << what << " at " << i << ": " << a;
    } else if (tolerance == 0 || std::isinf(b)) {
      ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(T)), 0)
          << what << " at " << i << ": " << a << ", want " << b;
    } else {
      ASSERT_NEAR(a, b, tolerance * std::max(1.0, std::abs(b))) << what << " at " << i;
    }
  }
}

// The elements of one parameter in a step.
template <typename P>
struct Elements {
  std::vector<P> parameter, next, gradient;
  std::vector<NumberOf<P>> state[kernels::kMaxOptimStates];
};

template <typename P>
Elements<P> Draw(size_t size, std::mt19937& random) {
  const auto draw = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() % 4096) / 4096;
  };
  Elements<P> all;
  for (size_t i = 0; i < size; ++i) {
    all.parameter.push_back(Convert<P>(draw(-1, 1)));
    all.gradient.push_back(Convert<P>(draw(-2, 2)));
    for (auto& state : all.state) state.push_back(Convert<NumberOf<P>>(draw(0, 1)));
  }
  all.next.resize(size);
  // What a bad gradient makes of an element must be the same too.
  const double odd[] = {std::nan(""), kInfinity, -kInfinity, 0, -0.0, 1e-40};
  for (size_t i = 0; i < std::size(odd) && 7 * i + 3 < size; ++i)
    all.gradient[7 * i + 3] = Convert<P>(odd[i]);
  return all;
}

OptimArrays ArraysOf(size_t k, size_t size) {
  OptimArrays arrays;
  arrays.size = size;
  arrays.first_element = k % 2 == 0 ? 0 : 3 * kernels::kOptimPartElements;
  arrays.rounding_seed = 1000 + k;
  return arrays;
}

// As memcpy, but the addresses of no bytes may be null.
void CopyElements(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Runs the CPU's kernel. All arrays are aligned.
template <typename P, typename Options>
void StepOnCpu(const optim::OptimKernelName<Options>& name, const Options& options, const Run& run,
               std::vector<Elements<P>>& all) {
  struct alignas(kernels::kOptimAlignment) Line {
    std::byte bytes[kernels::kOptimAlignment];
  };
  const auto aligned = [](auto& elements) {
    const size_t bytes = elements.size() * sizeof(elements[0]);
    std::vector<Line> lines(bytes / sizeof(Line) + 1);
    CopyElements(lines.data(), elements.data(), bytes);
    return lines;
  };
  for (size_t k = 0; k < all.size(); ++k) {
    Elements<P>& each = all[k];
    auto parameter = aligned(each.parameter), next = aligned(each.next);
    auto gradient = aligned(each.gradient);
    std::vector<std::vector<Line>> state;
    std::vector<OptimArrays> arrays{ArraysOf(k, each.parameter.size())};
    arrays[0].parameter = parameter.data();
    arrays[0].next = next.data();
    arrays[0].gradient = gradient.data();
    for (size_t s = 0; s < kernels::kMaxOptimStates; ++s) {
      state.push_back(aligned(each.state[s]));
      arrays[0].state[s] = state[s].data();
    }
    optim::CpuOptimKernels().Find(name)(nullptr, options, BatchOf<P>(arrays, run));
    CopyElements(each.next.data(), next.data(), each.next.size() * sizeof(P));
    for (size_t s = 0; s < kernels::kMaxOptimStates; ++s)
      CopyElements(each.state[s].data(), state[s].data(),
                   each.state[s].size() * sizeof(NumberOf<P>));
  }
}

// Runs the device's kernel once for all parameters. Gradients are not aligned.
template <typename P, typename Options>
void StepOnDevice(Device& device, const optim::OptimKernelName<Options>& name,
                  const Options& options, const Run& run, std::vector<Elements<P>>& all) {
  using T = NumberOf<P>;
  std::vector<DeviceCopy<P>> parameters, nexts, gradients;
  std::vector<DeviceCopy<T>> states;
  std::vector<OptimArrays> arrays;
  for (size_t k = 0; k < all.size(); ++k) {
    Elements<P>& each = all[k];
    parameters.emplace_back(device, each.parameter);
    nexts.emplace_back(device, each.next);
    gradients.emplace_back(device, each.gradient, k % 4);
    arrays.push_back(ArraysOf(k, each.parameter.size()));
    arrays[k].parameter = parameters[k].data();
    arrays[k].next = run.in_place ? parameters[k].data() : nexts[k].data();
    arrays[k].gradient = gradients[k].data();
    for (size_t s = 0; s < kernels::kMaxOptimStates; ++s) {
      states.emplace_back(device, each.state[s]);
      arrays[k].state[s] = states.back().data();
    }
  }
  const size_t before = KernelsLaunched(device);
  device.kernels().Find(name)(&device.default_stream(), options, BatchOf<P>(arrays, run));
  EXPECT_LE(KernelsLaunched(device), before + 1);
  for (size_t k = 0; k < all.size(); ++k) {
    Elements<P>& each = all[k];
    each.next = run.in_place ? parameters[k].Read() : nexts[k].Read();
    for (size_t s = 0; s < kernels::kMaxOptimStates; ++s)
      each.state[s] = states[k * kernels::kMaxOptimStates + s].Read();
  }
}

template <typename P, typename Options>
void Compare(Device& device, const optim::OptimKernelName<Options>& name, const Options& options,
             const std::vector<size_t>& sizes, const Run& run) {
  std::mt19937 random(7);
  std::vector<Elements<P>> got;
  for (const size_t size : sizes) got.push_back(Draw<P>(size, random));
  std::vector<Elements<P>> want = got;
  StepOnDevice(device, name, options, run, got);
  StepOnCpu(name, options, run, want);
  for (size_t k = 0; k < sizes.size(); ++k) {
    SCOPED_TRACE(::testing::Message() << "array " << k << " of " << sizes[k] << " elements");
    ExpectSame(got[k].next, want[k].next, "next");
    for (size_t s = 0; s < kernels::kMaxOptimStates; ++s)
      ExpectSame(got[k].state[s], want[k].state[s], "state");
  }
}

// The seeds also run the elements of a kernel in both directions.
class DeviceOptimTest : public testing::KernelDeviceTest {
 protected:
  DeviceOptimTest() : KernelDeviceTest(testing::DeviceOptimizers()) {}

  template <typename Options>
  void CompareAll(const optim::OptimKernelName<Options>& name,
                  const std::vector<Options>& variants) {
    const std::vector<size_t> sizes = {0, 1, 3, 4, 5, 64, 0, 1021, 1024, 1025, 2077, 0};
    for (size_t v = 0; v < variants.size(); ++v) {
      SCOPED_TRACE(::testing::Message() << name.name << ", variant " << v);
      const Options& options = variants[v];
      const bool in_place = v % 2 != 0;
      Compare<float>(*device_, name, options, sizes, {3, 1, kInfinity, false, in_place});
      Compare<float>(*device_, name, options, sizes, {1, 0.5, 0.25, false, in_place});
      Compare<double>(*device_, name, options, sizes, {2, 0.5, 0.25, false, in_place});
      Compare<Half>(*device_, name, options, sizes, {2, 2, 0.25, false, in_place});
      Compare<BFloat16>(*device_, name, options, sizes, {4, 1, kInfinity, false, in_place});
      Compare<BFloat16>(*device_, name, options, sizes, {4, 1, kInfinity, true, in_place});
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceOptimTest, ::testing::Values(0, 1, 2));

TEST_P(DeviceOptimTest, SgdIsTheCpus) {
  std::vector<kernels::SgdOptions> variants(6);
  variants[1].weight_decay = 0.1;
  variants[2].momentum = 0.9, variants[2].maximize = true;
  variants[3].momentum = 0.9, variants[3].dampening = 0.3, variants[3].weight_decay = 0.01;
  variants[4].momentum = 1, variants[4].nesterov = true;
  variants[5].momentum = 0.5, variants[5].nesterov = true, variants[5].weight_decay = 0.2;
  CompareAll(optim::kSgd, variants);
}

TEST_P(DeviceOptimTest, AdagradIsTheCpus) {
  std::vector<kernels::AdagradOptions> variants(3);
  variants[1].weight_decay = 0.1, variants[1].lr_decay = 0.5, variants[1].lr = 0.3;
  variants[2].maximize = true, variants[2].eps = 0.1;
  CompareAll(optim::kAdagrad, variants);
}

TEST_P(DeviceOptimTest, AdamAndAdamWAreTheCpus) {
  std::vector<kernels::AdamOptions> variants(6);
  variants[1].weight_decay = 0.1;
  variants[2].amsgrad = true;
  variants[3].amsgrad = true, variants[3].weight_decay = 0.05, variants[3].maximize = true;
  variants[4].decoupled_decay = true, variants[4].weight_decay = 0.01;
  variants[5] = variants[4], variants[5].amsgrad = true, variants[5].maximize = true;
  CompareAll(optim::kAdam, variants);
}

TEST_P(DeviceOptimTest, AdamaxIsTheCpus) {
  std::vector<kernels::AdamaxOptions> variants(3);
  variants[1].weight_decay = 0.1, variants[1].beta1 = 0.5, variants[1].beta2 = 0.2;
  variants[2].maximize = true, variants[2].eps = 0.1, variants[2].lr = 0.1;
  CompareAll(optim::kAdamax, variants);
}

TEST_P(DeviceOptimTest, AdadeltaIsTheCpus) {
  std::vector<kernels::AdadeltaOptions> variants(3);
  variants[1].weight_decay = 0.1, variants[1].rho = 0.5;
  variants[2].maximize = true, variants[2].eps = 0.01, variants[2].lr = 0.1;
  CompareAll(optim::kAdadelta, variants);
}

TEST_P(DeviceOptimTest, RmsPropIsTheCpus) {
  std::vector<kernels::RmsPropOptions> variants(5);
  variants[1].weight_decay = 0.1, variants[1].momentum = 0.9;
  variants[2].centered = true, variants[2].alpha = 0.5;
  variants[3].centered = true, variants[3].momentum = 0.5, variants[3].alpha = 0.7;
  variants[4].maximize = true, variants[4].eps = 0.01, variants[4].lr = 0.1;
  CompareAll(optim::kRmsProp, variants);
}

TEST_P(DeviceOptimTest, RpropIsTheCpus) {
  std::vector<kernels::RpropOptions> variants(3);
  variants[1].etaminus = 0.3, variants[1].etaplus = 2, variants[1].maximize = true;
  variants[2].step_size_min = 0.2, variants[2].step_size_max = 0.27;
  CompareAll(optim::kRprop, variants);
}

TEST_P(DeviceOptimTest, ThousandsOfParametersAreOneLaunch) {
  std::vector<size_t> sizes;
  for (size_t k = 0; k < 2000; ++k) sizes.push_back(k % 11);
  Compare<float>(*device_, optim::kSgd, kernels::SgdOptions{}, sizes, {});
}

TEST_P(DeviceOptimTest, ABatchWithoutElementsLaunchesNothing) {
  const size_t before = KernelsLaunched(*device_);
  Compare<float>(*device_, optim::kSgd, kernels::SgdOptions{}, {0, 0}, {});
  Compare<float>(*device_, optim::kSgd, kernels::SgdOptions{}, {}, {});
  EXPECT_EQ(KernelsLaunched(*device_), before);
}

}  // namespace
}  // namespace psd
