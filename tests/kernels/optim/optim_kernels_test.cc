// The vectorised optimizer kernels, each instruction set of this machine, against scalar loops.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/optim_adam.h"
#include "kernels/optim_arrays.h"
#include "kernels/optim_reference.h"
#include "kernels/optim_sgd.h"
#include "tests/kernels/on_every_target.h"

namespace psd::kernels {
namespace {

// Odd sizes around every vector width.
const size_t kSizes[] = {0, 1, 3, 8, 9, 15, 16, 17, 33, 65, 257};
constexpr int kSteps = 2;

// An array at a given distance from an aligned address, with guards behind it.
template <typename T>
class Array {
 public:
  explicit Array(size_t size, size_t skew = 0)
      : memory_(size + skew + 2 * kPad, kGuard), size_(size) {
    const size_t misaligned = reinterpret_cast<uintptr_t>(memory_.data()) % kOptimAlignment;
    offset_ = (kOptimAlignment - misaligned) % kOptimAlignment / sizeof(T) + skew;
    for (size_t i = 0; i < size_; ++i) data()[i] = 0;
  }
  T* data() { return memory_.data() + offset_; }
  T& operator[](size_t i) { return data()[i]; }
  bool GuardIntact() { return data()[size_] == kGuard && (offset_ == 0 || data()[-1] == kGuard); }

 private:
  static constexpr size_t kPad = kOptimAlignment / sizeof(T);
  static constexpr T kGuard = 12345;
  std::vector<T> memory_;
  size_t size_;
  size_t offset_;
};

template <typename T>
double Tolerance() {
  return std::is_same_v<T, float> ? 1e-6 : 1e-14;
}

// What one optimizer needs to be run twice: by the kernel and by the reference.
template <typename T>
struct Numbers {
  Numbers(size_t size, size_t skew) : parameter(size), next(size), gradient(size, skew) {
    for (int s = 0; s < 3; ++s) state.emplace_back(size);
  }
  OptimArrays<T> Arrays(size_t size, bool in_place) {
    T* const written = in_place ? parameter.data() : next.data();
    return {parameter.data(), written, gradient.data(), size, scale, limit};
  }
  Array<T> parameter, next, gradient;
  std::vector<Array<T>> state;
  double scale = 1, limit = std::numeric_limits<double>::infinity();
};

template <typename T>
void ExpectNear(Array<T>& got, Array<T>& want, size_t size, const char* what) {
  for (size_t i = 0; i < size; ++i) {
    const double tolerance = Tolerance<T>() * std::max(1.0, std::abs(double{want[i]}));
    ASSERT_NEAR(got[i], want[i], tolerance) << what << " at " << i << " of " << size;
  }
  EXPECT_TRUE(got.GuardIntact()) << what;
}

// Steps kernel and reference side by side on the same random numbers.
template <typename T, typename Kernel, typename Reference>
void Compare(size_t size, bool in_place, const Kernel& kernel, const Reference& reference) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::normal_distribution<double> normal;
  Numbers<T> got(size, size % 5), want(size, 0);
  for (size_t i = 0; i < size; ++i)
    got.parameter[i] = want.parameter[i] = static_cast<T>(normal(random));
  for (int step = 1; step <= kSteps; ++step) {
    for (size_t i = 0; i < size; ++i)
      got.gradient[i] = want.gradient[i] = static_cast<T>(normal(random));
    kernel(step, got.Arrays(size, in_place), got);
    reference(step, want.Arrays(size, false), want);
    if (!in_place) std::swap(got.parameter, got.next);
    std::swap(want.parameter, want.next);
    ExpectNear(got.parameter, want.parameter, size, "parameter");
    for (int s = 0; s < 3; ++s) ExpectNear(got.state[s], want.state[s], size, "state");
  }
}

std::vector<SgdOptions> SgdVariants() {
  std::vector<SgdOptions> variants(7);
  variants[1].weight_decay = 0.1;
  variants[2].momentum = 0.9;
  variants[3].momentum = 0.9, variants[3].dampening = 0.3, variants[3].weight_decay = 0.01;
  variants[4].momentum = 1, variants[4].nesterov = true;
  variants[5].momentum = 0.5, variants[5].nesterov = true, variants[5].weight_decay = 0.2;
  variants[6].maximize = true, variants[6].weight_decay = 0.1;
  return variants;
}

std::vector<AdamOptions> AdamVariants() {
  std::vector<AdamOptions> variants(7);
  variants[1].weight_decay = 0.1;
  variants[2].amsgrad = true;
  variants[3].amsgrad = true, variants[3].weight_decay = 0.05, variants[3].maximize = true;
  variants[4].decoupled_decay = true, variants[4].weight_decay = 0.01;
  variants[5] = variants[4], variants[5].amsgrad = true, variants[5].maximize = true;
  variants[6].beta1 = 0, variants[6].beta2 = 0.5, variants[6].eps = 1e-3, variants[6].lr = 0.1;
  return variants;
}

template <typename T>
void CompareSgd(const SgdOptions& options, size_t size, bool in_place) {
  Compare<T>(
      size, in_place,
      [&](int step, const OptimArrays<T>& arrays, Numbers<T>& run) {
        SgdStep(options, step, arrays, run.state[0].data());
      },
      [&](int step, const OptimArrays<T>& arrays, Numbers<T>& run) {
        ReferenceSgdStep(options, step, arrays, run.state[0].data());
      });
}

template <typename T>
void CompareAdam(const AdamOptions& options, size_t size, bool in_place) {
  const auto state = [](Numbers<T>& run) {
    return AdamState<T>{run.state[0].data(), run.state[1].data(), run.state[2].data()};
  };
  Compare<T>(
      size, in_place,
      [&](int step, const OptimArrays<T>& arrays, Numbers<T>& run) {
        AdamStep(options, step, arrays, state(run));
      },
      [&](int step, const OptimArrays<T>& arrays, Numbers<T>& run) {
        ReferenceAdamStep(options, step, arrays, state(run));
      });
}

TEST(OptimKernels, SgdMatchesReference) {
  OnEveryTarget([] {
    for (const SgdOptions& options : SgdVariants()) {
      for (const size_t size : kSizes) {
        for (const bool in_place : {false, true}) {
          CompareSgd<float>(options, size, in_place);
          CompareSgd<double>(options, size, in_place);
        }
      }
    }
  });
}

TEST(OptimKernels, AdamMatchesReference) {
  OnEveryTarget([] {
    for (const AdamOptions& options : AdamVariants()) {
      for (const size_t size : kSizes) {
        for (const bool in_place : {false, true}) {
          CompareAdam<float>(options, size, in_place);
          CompareAdam<double>(options, size, in_place);
        }
      }
    }
  });
}

TEST(OptimKernels, GradientIsScaledThenLimited) {
  OnEveryTarget([] {
    Numbers<float> run(3, 1);
    run.scale = 0.5, run.limit = 1;
    run.gradient[0] = 1, run.gradient[1] = -8;
    run.gradient[2] = std::numeric_limits<float>::quiet_NaN();
    SgdOptions options;
    options.lr = 1, options.maximize = true;
    SgdStep(options, 1, run.Arrays(3, false), nullptr);
    EXPECT_EQ(run.next[0], 0.5f);
    EXPECT_EQ(run.next[1], -1);
    EXPECT_TRUE(std::isnan(run.next[2]));
    EXPECT_EQ(run.gradient[1], -8);
  });
}

TEST(OptimKernels, PastTheCache) {
  EXPECT_FALSE(WritesPastCache(1024));
  ASSERT_TRUE(WritesPastCache(size_t{1} << 30));
  size_t size = 1013;
  while (!WritesPastCache(size * sizeof(float))) size += 1013;
  OnEveryTarget([size] { CompareSgd<float>(SgdOptions{}, size, false); });
}

TEST(OptimKernels, ResultDoesNotDependOnPosition) {
  OnEveryTarget([] {
    constexpr size_t kSize = 67;
    Numbers<float> run(kSize, 1);
    for (size_t i = 0; i < kSize; ++i) run.parameter[i] = 0.3f, run.gradient[i] = 0.7f;
    AdamStep(AdamOptions{}, 5, run.Arrays(kSize, false),
             {run.state[0].data(), run.state[1].data(), nullptr});
    for (size_t i = 1; i < kSize; ++i)
      ASSERT_EQ(std::memcmp(&run.next[i], &run.next[0], sizeof(float)), 0) << i;
  });
}

TEST(OptimKernels, NanAndInfinityPassThrough) {
  constexpr size_t kSize = 19;
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  OnEveryTarget([] {
    for (const bool amsgrad : {false, true}) {
      Numbers<float> run(kSize, 0);
      run.gradient[2] = kNan;
      run.parameter[17] = kInfinity;
      AdamOptions options;
      options.amsgrad = amsgrad;
      AdamStep(options, 1, run.Arrays(kSize, false),
               {run.state[0].data(), run.state[1].data(), run.state[2].data()});
      for (size_t i = 0; i < kSize; ++i) EXPECT_EQ(std::isnan(run.next[i]), i == 2) << i;
      EXPECT_EQ(run.next[17], kInfinity);
      EXPECT_EQ(std::isnan(run.state[2][2]), amsgrad);

      SgdStep(SgdOptions{}, 1, run.Arrays(kSize, false), nullptr);
      for (size_t i = 0; i < kSize; ++i) EXPECT_EQ(std::isnan(run.next[i]), i == 2) << i;
      EXPECT_EQ(run.next[17], kInfinity);
    }
  });
}

}  // namespace
}  // namespace psd::kernels
