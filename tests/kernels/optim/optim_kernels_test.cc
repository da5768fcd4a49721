// Compares the vectorized optimizer kernels with scalar loops, on each instruction set of this
// machine.

#include <sys/mman.h>
#include <unistd.h>

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
#include "kernels/convert.h"
#include "kernels/optim/adadelta.h"
#include "kernels/optim/adagrad.h"
#include "kernels/optim/adam.h"
#include "kernels/optim/adamax.h"
#include "kernels/optim/arrays.h"
#include "kernels/optim/reference.h"
#include "kernels/optim/rmsprop.h"
#include "kernels/optim/rounding.h"
#include "kernels/optim/rprop.h"
#include "kernels/optim/sgd.h"
#include "tests/kernels/on_every_target.h"

namespace psd::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void Step(const SgdOptions& options, const OptimBatch& batch) {
  SgdStep(options, batch);
}
void Step(const AdagradOptions& options, const OptimBatch& batch) {
  AdagradStep(options, batch);
}
void Step(const AdamOptions& options, const OptimBatch& batch) {
  AdamStep(options, batch);
}
void Step(const AdamaxOptions& options, const OptimBatch& batch) {
  AdamaxStep(options, batch);
}
void Step(const AdadeltaOptions& options, const OptimBatch& batch) {
  AdadeltaStep(options, batch);
}
void Step(const RmsPropOptions& options, const OptimBatch& batch) {
  RmsPropStep(options, batch);
}
void Step(const RpropOptions& options, const OptimBatch& batch) {
  RpropStep(options, batch);
}

// The largest relative difference that rounding can cause between two runs.
template <typename P>
constexpr double kTolerance = 1e-6;
template <>
constexpr double kTolerance<double> = 1e-14;
template <>
constexpr double kTolerance<Half> = 1.0 / 1024;
template <>
constexpr double kTolerance<BFloat16> = 1.0 / 128;

template <typename P>
constexpr OptimType kType = OptimType::kF32;
template <>
constexpr OptimType kType<double> = OptimType::kF64;
template <>
constexpr OptimType kType<Half> = OptimType::kF16;
template <>
constexpr OptimType kType<BFloat16> = OptimType::kBF16;

template <typename P>
using StateOf = std::conditional_t<std::is_same_v<P, double>, double, float>;

// An array that starts `skew` elements after an aligned address, with guards on both sides.
template <typename P>
class Array {
 public:
  explicit Array(size_t size, size_t skew = 0)
      : memory_(size + skew + 3 * kPad, Convert<P>(kGuard)), size_(size) {
    const size_t misaligned = reinterpret_cast<uintptr_t>(memory_.data()) % kOptimAlignment;
    offset_ = kPad + (kOptimAlignment - misaligned) % kOptimAlignment / sizeof(P) + skew;
    Fill(0);
  }
  P* data() { return memory_.data() + offset_; }
  void Fill(double value) { std::fill_n(data(), size_, Convert<P>(value)); }
  void Set(size_t i, double value) { data()[i] = Convert<P>(value); }
  double operator[](size_t i) { return Convert<double>(data()[i]); }
  bool GuardIntact() { return (*this)[size_] == kGuard && Convert<double>(data()[-1]) == kGuard; }

 private:
  static constexpr size_t kPad = kOptimAlignment / sizeof(P);
  static constexpr double kGuard = 12352;  // exact in every format
  std::vector<P> memory_;
  size_t size_;
  size_t offset_;
};

// A parameter with its next version, gradient and state.
template <typename P>
struct Numbers {
  explicit Numbers(size_t size, size_t skew = 0)
      : size(size), parameter(size), next(size), gradient(size, skew) {
    for (size_t s = 0; s < kMaxOptimStates; ++s) state.emplace_back(size);
  }
  OptimArrays Arrays(bool in_place = false) {
    OptimArrays arrays;
    arrays.parameter = parameter.data();
    arrays.next = in_place ? parameter.data() : next.data();
    arrays.gradient = gradient.data();
    for (size_t s = 0; s < kMaxOptimStates; ++s) arrays.state[s] = state[s].data();
    arrays.size = size;
    return arrays;
  }
  size_t size;
  Array<P> parameter, next, gradient;
  std::vector<Array<StateOf<P>>> state;
};

template <typename P>
OptimBatch BatchOf(const OptimArrays& arrays, int64_t step = 1) {
  OptimBatch batch;
  batch.type = kType<P>;
  batch.step = step;
  batch.arrays = &arrays;
  batch.count = 1;
  return batch;
}

template <typename P>
void ExpectNear(Array<P>& got, Array<P>& want, size_t size, double tolerance, const char* what) {
  for (size_t i = 0; i < size; ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0, std::abs(want[i])))
        << what << " at " << i << " of " << size;
  }
  EXPECT_TRUE(got.GuardIntact()) << what;
}

struct Run {
  bool in_place = false;
  double scale = 1;
  double limit = kInfinity;
  bool stochastic_rounding = false;
};

// Draws a number of a magnitude in [0.5, 1.5). As a gradient, it is larger than the weight decay
// that is added to it. If the two canceled out, the quotients of most optimizers would be
// ill-conditioned.
double Draw(std::mt19937& random) {
  const double magnitude = 0.5 + static_cast<double>(random() % 1024) / 1024;
  return random() % 2 == 0 ? magnitude : -magnitude;
}

// Steps the kernel and the reference on the same random numbers and compares them.
template <typename P, typename Options>
void Compare(const Options& options, size_t size, const Run& run) {
  std::mt19937 random(static_cast<unsigned>(size));
  Numbers<P> got(size, size % 5), want(size);
  for (size_t i = 0; i < size; ++i) {
    const double start = Draw(random) / 2;
    got.parameter.Set(i, start), want.parameter.Set(i, start);
  }
  if (std::is_same_v<Options, RpropOptions>) got.state[1].Fill(0.25), want.state[1].Fill(0.25);
  for (int step = 1; step <= 3; ++step) {
    for (size_t i = 0; i < size; ++i) {
      const double g = Draw(random);
      got.gradient.Set(i, g), want.gradient.Set(i, g);
    }
    const OptimArrays got_arrays = got.Arrays(run.in_place), want_arrays = want.Arrays();
    for (const bool reference : {false, true}) {
      OptimBatch batch = BatchOf<P>(reference ? want_arrays : got_arrays, step);
      batch.gradient_scale = run.scale, batch.gradient_limit = run.limit;
      batch.stochastic_rounding = run.stochastic_rounding;
      reference ? ReferenceStep(options, batch) : Step(options, batch);
    }
    if (!run.in_place) std::swap(got.parameter, got.next);
    std::swap(want.parameter, want.next);
    ExpectNear(got.parameter, want.parameter, size, kTolerance<P>, "parameter");
    for (size_t s = 0; s < kMaxOptimStates; ++s)
      ExpectNear(got.state[s], want.state[s], size, 4 * kTolerance<P>, "state");
  }
}

template <typename Options>
void CompareAll(const std::vector<Options>& variants) {
  OnEveryTarget([&] {
    for (size_t v = 0; v < variants.size(); ++v) {
      SCOPED_TRACE(testing::Message() << "variant " << v);
      for (const size_t size : kLengths) {
        Run run;
        run.in_place = (size + v) % 2 != 0;
        Compare<float>(variants[v], size, run);
        Compare<double>(variants[v], size, run);
        Compare<Half>(variants[v], size, run);
        Compare<BFloat16>(variants[v], size, run);
      }
      Compare<float>(variants[v], 1037, {false, 0.5, 0.25, false});
      Compare<double>(variants[v], 1037, {true, 0.5, 0.25, false});
      Compare<Half>(variants[v], 1037, {false, 2, 0.25, false});
      Compare<BFloat16>(variants[v], 2077, {false, 1, kInfinity, true});
    }
  });
}

TEST(OptimKernels, OPT_25_OPT_26_OPT_27_OPT_28_SgdMatchesReference) {
  std::vector<SgdOptions> variants(7);
  variants[1].weight_decay = 0.1;
  variants[2].momentum = 0.9;
  variants[3].momentum = 0.9, variants[3].dampening = 0.3, variants[3].weight_decay = 0.01;
  variants[4].momentum = 1, variants[4].nesterov = true;
  variants[5].momentum = 0.5, variants[5].nesterov = true, variants[5].weight_decay = 0.2;
  variants[6].maximize = true, variants[6].weight_decay = 0.1;
  CompareAll(variants);
}

TEST(OptimKernels, OPT_28_OPT_29_AdagradMatchesReference) {
  std::vector<AdagradOptions> variants(3);
  variants[1].weight_decay = 0.1, variants[1].lr_decay = 0.5, variants[1].lr = 0.3;
  variants[2].maximize = true, variants[2].eps = 0.1;
  CompareAll(variants);
}

TEST(OptimKernels, OPT_28_OPT_31_OPT_32_OPT_33_AdamMatchesReference) {
  std::vector<AdamOptions> variants(7);
  variants[1].weight_decay = 0.1;
  variants[2].amsgrad = true;
  variants[3].amsgrad = true, variants[3].weight_decay = 0.05, variants[3].maximize = true;
  variants[4].decoupled_decay = true, variants[4].weight_decay = 0.01;
  variants[5] = variants[4], variants[5].amsgrad = true, variants[5].maximize = true;
  variants[6].beta1 = 0, variants[6].beta2 = 0.5, variants[6].eps = 1e-3, variants[6].lr = 0.1;
  CompareAll(variants);
}

TEST(OptimKernels, OPT_28_OPT_34_AdamaxMatchesReference) {
  std::vector<AdamaxOptions> variants(3);
  variants[1].weight_decay = 0.1, variants[1].beta1 = 0.5, variants[1].beta2 = 0.2;
  variants[2].maximize = true, variants[2].eps = 0.1, variants[2].lr = 0.1;
  CompareAll(variants);
}

TEST(OptimKernels, OPT_28_OPT_35_AdadeltaMatchesReference) {
  std::vector<AdadeltaOptions> variants(3);
  variants[1].weight_decay = 0.1, variants[1].rho = 0.5;
  variants[2].maximize = true, variants[2].eps = 0.01, variants[2].lr = 0.1;
  CompareAll(variants);
}

TEST(OptimKernels, OPT_28_OPT_36_RmsPropMatchesReference) {
  std::vector<RmsPropOptions> variants(5);
  variants[1].weight_decay = 0.1, variants[1].momentum = 0.9;
  variants[2].centered = true, variants[2].alpha = 0.5;
  variants[3].centered = true, variants[3].momentum = 0.5, variants[3].alpha = 0.7;
  variants[4].maximize = true, variants[4].eps = 0.01, variants[4].lr = 0.1;
  CompareAll(variants);
}

TEST(OptimKernels, OPT_28_OPT_37_RpropMatchesReference) {
  std::vector<RpropOptions> variants(3);
  variants[1].etaminus = 0.3, variants[1].etaplus = 2, variants[1].maximize = true;
  variants[2].step_size_min = 0.2, variants[2].step_size_max = 0.27;
  CompareAll(variants);
}

TEST(OptimKernels, OPT_28_MaximizeIsANegatedGradientAndNoNegatedDecay) {
  OnEveryTarget([] {
    Numbers<float> up(5), down(5);
    for (size_t i = 0; i < 5; ++i) {
      up.parameter.Set(i, 2), up.gradient.Set(i, 0.5 + static_cast<double>(i));
      down.parameter.Set(i, 2), down.gradient.Set(i, -0.5 - static_cast<double>(i));
    }
    AdamOptions options;
    options.weight_decay = 0.1;
    const OptimArrays down_arrays = down.Arrays(), up_arrays = up.Arrays();
    Step(options, BatchOf<float>(down_arrays));
    options.maximize = true;
    Step(options, BatchOf<float>(up_arrays));
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(up.next[i], down.next[i]);
  });
}

TEST(OptimKernels, OPT_30_AdagradStartsFromItsSum) {
  OnEveryTarget([] {
    Numbers<double> run(3);
    run.state[0].Fill(9);
    run.gradient.Fill(4);
    AdagradOptions options;
    options.lr = 1;
    options.eps = 0;
    const OptimArrays arrays = run.Arrays();
    Step(options, BatchOf<double>(arrays));
    EXPECT_DOUBLE_EQ(run.next[1], -4.0 / 5);
  });
}

TEST(OptimKernels, OPT_34_AdamaxEpsIsInsideTheMaximum) {
  OnEveryTarget([] {
    Numbers<double> run(3);
    run.gradient.Fill(1);
    AdamaxOptions options;
    options.lr = 1;
    options.eps = 1;
    const OptimArrays arrays = run.Arrays();
    Step(options, BatchOf<double>(arrays));
    EXPECT_DOUBLE_EQ(run.state[1][0], 2);
    EXPECT_NEAR(run.next[0], -0.5, 1e-12);
  });
}

TEST(OptimKernels, OPT_37_RpropRestsAfterAChangeOfSignAndClampsTheFirstStep) {
  OnEveryTarget([] {
    Numbers<double> run(1);
    run.state[1].Fill(100);
    const RpropOptions options;
    std::vector<double> path;
    const double gradients[] = {3, -1, -1, -1};
    for (int step = 1; step <= 4; ++step) {
      run.gradient.Fill(gradients[step - 1]);
      const OptimArrays arrays = run.Arrays(/*in_place=*/true);
      Step(options, BatchOf<double>(arrays, step));
      path.push_back(run.parameter[0]);
    }
    EXPECT_EQ(path, (std::vector<double>{-50, -50, -25, 5}));
  });
}

TEST(OptimKernels, GradientIsScaledThenLimited) {
  OnEveryTarget([] {
    Numbers<float> run(3, 1);
    run.gradient.Set(0, 1), run.gradient.Set(1, -8), run.gradient.Set(2, kNan);
    SgdOptions options;
    options.lr = 1, options.maximize = true;
    const OptimArrays arrays = run.Arrays();
    OptimBatch batch = BatchOf<float>(arrays);
    batch.gradient_scale = 0.5, batch.gradient_limit = 1;
    Step(options, batch);
    EXPECT_EQ(run.next[0], 0.5f);
    EXPECT_EQ(run.next[1], -1);
    EXPECT_TRUE(std::isnan(run.next[2]));
  });
}

TEST(OptimKernels, OPT_44_GradientsAreNeverModified) {
  OnEveryTarget([] {
    Numbers<float> run(77, 3);
    for (size_t i = 0; i < 77; ++i) run.gradient.Set(i, 0.1 * static_cast<double>(i));
    const std::vector<float> before(run.gradient.data(), run.gradient.data() + 77);
    const OptimArrays arrays = run.Arrays();
    OptimBatch batch = BatchOf<float>(arrays);
    for (const double limit : {kInfinity, 0.5}) {
      batch.gradient_limit = limit;
      SgdOptions sgd;
      sgd.weight_decay = sgd.momentum = 0.1, sgd.nesterov = true;
      Step(sgd, batch);
      AdamOptions adam;
      adam.weight_decay = 0.1;
      Step(adam, batch);
      Step(RpropOptions{}, batch);
    }
    EXPECT_EQ(std::memcmp(run.gradient.data(), before.data(), 77 * sizeof(float)), 0);
  });
}

TEST(OptimKernels, PastTheCache) {
  EXPECT_FALSE(WritesPastCache(1024));
  ASSERT_TRUE(WritesPastCache(size_t{1} << 30));
  size_t size = 1013;  // there is no state, so three arrays are touched
  while (!WritesPastCache(3 * size * sizeof(float))) size += 1013;
  OnEveryTarget([size] {
    Compare<float>(SgdOptions{}, size, {});
    Compare<BFloat16>(SgdOptions{}, 2 * size, {});
    Compare<float>(SgdOptions{}, size, {false, 1, 0.5, false});
  });
}

TEST(OptimKernels, BatchesAreTheSameAsOneByOne) {
  OnEveryTarget([] {
    const size_t sizes[] = {0, 3, 100, 1, 64, 5000};
    std::vector<Numbers<float>> runs;
    std::vector<OptimArrays> arrays;
    for (const size_t size : sizes) runs.emplace_back(size).gradient.Fill(0.5);
    for (auto& run : runs) arrays.push_back(run.Arrays());
    OptimBatch batch = BatchOf<float>(arrays[0], 2);
    batch.count = arrays.size();
    Step(AdamOptions{}, batch);
    Numbers<float> one(1);
    one.gradient.Fill(0.5);
    const OptimArrays one_arrays = one.Arrays();
    Step(AdamOptions{}, BatchOf<float>(one_arrays, 2));
    for (auto& run : runs) {
      for (size_t i = 0; i < run.size; ++i) ASSERT_EQ(run.next[i], one.next[0]);
      EXPECT_TRUE(run.next.GuardIntact());
    }
  });
}

TEST(OptimKernels, ResultDoesNotDependOnPosition) {
  OnEveryTarget([] {
    constexpr size_t kSize = 67;
    Numbers<float> run(kSize, 1);
    run.parameter.Fill(0.3), run.gradient.Fill(0.7);
    const OptimArrays arrays = run.Arrays();
    Step(AdamOptions{}, BatchOf<float>(arrays, 5));
    for (size_t i = 1; i < kSize; ++i) ASSERT_EQ(run.next[i], run.next[0]) << i;
  });
}

// The array ends at the end of a page, and the next page must not be touched.
TEST(OptimKernels, NothingBehindTheArraysIsTouched) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const pages =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* const end = static_cast<std::byte*>(pages) + page;
  ASSERT_EQ(mprotect(end, page, PROT_NONE), 0);
  OnEveryTarget([end] {
    for (const size_t size : {1, 5, 16, 19}) {
      Numbers<float> run(size);
      OptimArrays arrays = run.Arrays();
      arrays.gradient = end - size * sizeof(float);
      Step(AdamOptions{}, BatchOf<float>(arrays));
      Numbers<BFloat16> narrow(size);
      arrays = narrow.Arrays();
      arrays.gradient = end - size * sizeof(BFloat16);
      Step(AdamOptions{}, BatchOf<BFloat16>(arrays));
    }
  });
  munmap(pages, 2 * page);
}

TEST(OptimKernels, NanAndInfinityPassThrough) {
  constexpr size_t kSize = 19;
  OnEveryTarget([] {
    for (const bool amsgrad : {false, true}) {
      Numbers<float> run(kSize);
      run.gradient.Set(2, kNan);
      run.parameter.Set(17, kInfinity);
      AdamOptions options;
      options.amsgrad = amsgrad;
      const OptimArrays arrays = run.Arrays();
      Step(options, BatchOf<float>(arrays));
      for (size_t i = 0; i < kSize; ++i) EXPECT_EQ(std::isnan(run.next[i]), i == 2) << i;
      EXPECT_EQ(run.next[17], kInfinity);
      EXPECT_EQ(std::isnan(run.state[2][2]), amsgrad);
      for (size_t s = 0; s < kMaxOptimStates; ++s) run.state[s].Fill(0.5);
      Step(AdamaxOptions{}, BatchOf<float>(arrays));
      for (size_t i = 0; i < kSize; ++i) EXPECT_EQ(std::isnan(run.next[i]), i == 2) << i;
      EXPECT_TRUE(std::isnan(run.state[1][2]));
      Step(RpropOptions{}, BatchOf<float>(arrays));
      for (size_t i = 0; i < kSize; ++i) EXPECT_EQ(std::isnan(run.next[i]), i == 2) << i;
      Step(SgdOptions{}, BatchOf<float>(arrays));
      for (size_t i = 0; i < kSize; ++i) EXPECT_EQ(std::isnan(run.next[i]), i == 2) << i;
      EXPECT_EQ(run.next[17], kInfinity);
    }
  });
}

TEST(OptimKernels, StochasticRoundingIsRightOnAverage) {
  OnEveryTarget([] {
    constexpr size_t kSize = 20'000;
    Numbers<BFloat16> run(kSize);
    run.parameter.Fill(1), run.gradient.Fill(-1);
    run.gradient.Set(7, kNan), run.parameter.Set(8, kInfinity);
    SgdOptions options;
    options.lr = 0.25 / 128;  // a quarter of a bf16 step, which rounding to nearest would lose
    const OptimArrays arrays = run.Arrays();
    OptimBatch batch = BatchOf<BFloat16>(arrays);
    Step(options, batch);
    EXPECT_EQ(run.next[0], 1);
    batch.stochastic_rounding = true;
    Step(options, batch);
    EXPECT_TRUE(std::isnan(run.next[7]));
    EXPECT_EQ(run.next[8], kInfinity);
    double sum = 0;
    for (size_t i = 9; i < kSize; ++i) sum += (run.next[i] - 1) * 128;
    EXPECT_NEAR(sum / kSize, 0.25, 0.02);
  });
}

TEST(OptimKernels, StochasticRoundingIsTheSameInParts) {
  constexpr size_t kSize = 3 * kOptimPartElements + 17;
  SgdOptions options;
  options.lr = 0.3 / 128;
  std::vector<uint16_t> first;
  OnEveryTarget([&] {
    Numbers<BFloat16> whole(kSize), parts(kSize);
    for (auto* run : {&whole, &parts}) run->parameter.Fill(1), run->gradient.Fill(-1);
    OptimArrays arrays = whole.Arrays();
    OptimBatch batch = BatchOf<BFloat16>(arrays, 3);
    batch.stochastic_rounding = true;
    arrays.rounding_seed = 5;
    Step(options, batch);
    for (const size_t from : {size_t{0}, 2 * kOptimPartElements}) {
      arrays = parts.Arrays();
      arrays.rounding_seed = 5;
      arrays = PartOf(arrays, batch.type, from, std::min(kSize - from, 2 * kOptimPartElements));
      Step(options, batch);
    }
    std::vector<uint16_t> bits;
    for (size_t i = 0; i < kSize; ++i) {
      bits.push_back(whole.next.data()[i].bits);
      ASSERT_EQ(parts.next.data()[i].bits, bits.back()) << i;
    }
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first);  // the bits are the same on every instruction set
  });
}

template <typename P>
void ExpectAPartOfEveryArray() {
  constexpr size_t kFirst = kOptimPartElements;
  Numbers<P> run(3 * kFirst);
  OptimArrays arrays = run.Arrays();
  arrays.state[2] = nullptr;
  arrays.rounding_seed = 5;
  arrays.first_element = kFirst;
  const OptimArrays part = PartOf(arrays, kType<P>, kFirst, 7);
  EXPECT_EQ(part.parameter, run.parameter.data() + kFirst);
  EXPECT_EQ(part.next, run.next.data() + kFirst);
  EXPECT_EQ(part.gradient, run.gradient.data() + kFirst);
  EXPECT_EQ(part.state[0], run.state[0].data() + kFirst);
  EXPECT_EQ(part.state[1], run.state[1].data() + kFirst);
  EXPECT_EQ(part.state[2], nullptr);
  EXPECT_EQ(part.size, 7u);
  EXPECT_EQ(part.first_element, 2 * kFirst);
  EXPECT_EQ(part.rounding_seed, 5u);
}

TEST(OptimArrays, APartIsTakenOfEveryArray) {
  ExpectAPartOfEveryArray<float>();
  ExpectAPartOfEveryArray<double>();
  ExpectAPartOfEveryArray<Half>();
  ExpectAPartOfEveryArray<BFloat16>();
}

TEST(OptimRounding, KeysDiffer) {
  EXPECT_NE(RoundingKey(1, 1, 0), RoundingKey(1, 1, 1));
  EXPECT_NE(RoundingKey(1, 1, 0), RoundingKey(1, 2, 0));
  EXPECT_NE(RoundingKey(1, 1, 0), RoundingKey(2, 1, 0));
  EXPECT_NE(RoundingBits(1, 0), RoundingBits(1, 1));
}

}  // namespace
}  // namespace psd::kernels
