// One optimizer over an owner with its parameters on a device and one with them on the CPU.
// The tests run with several seeds, which decide in which order an emulated device works.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/psd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_under_test.h"

namespace psd {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// "there" has the device and "here" has no device.
class MixedOwnersTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  // Makes a parameter on each owner: on this device of "there", and on the CPU of "here".
  std::vector<RRef> Make(const std::string& name, const std::string& device) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    const RRef first = Must(trainer_->GetOrCreate("there", name, Uniform({40}, 1, 2, 7), options));
    options.device = "cpu";
    return {first, Must(trainer_->GetOrCreate("here", name, Uniform({3, 5}, 1, 2, 8), options))};
  }
  // Returns the context of the backward of sum(w * w * c) of both parameters, where w is the
  // parameter's value and c the factor of the parameter.
  Context Differentiate(const std::vector<RRef>& parameters, const std::vector<double>& factors) {
    Context context = Must(trainer_->NewContext());
    const std::vector<Variable> values = Must(trainer_->ToHere(parameters, context));
    std::vector<Variable> roots;
    for (size_t i = 0; i < values.size(); ++i)
      roots.push_back(Sum(values[i] * values[i] * factors[i]));
    const absl::Status back = context.Backward(roots);
    EXPECT_TRUE(back.ok()) << back;
    return context;
  }
  std::vector<uint64_t> Versions(const std::vector<RRef>& parameters) {
    std::vector<uint64_t> versions;
    for (const auto& pulled : Must(trainer_->Pull(parameters))) versions.push_back(pulled.version);
    return versions;
  }
  std::vector<std::vector<float>> ReadAll(const std::vector<RRef>& parameters) {
    std::vector<std::vector<float>> all;
    for (const RRef& each : parameters) all.push_back(Read(*trainer_, each));
    return all;
  }

  OwnerUnderTest there_{"there", {}, GetParam()};
  TestOwner here_{"here"};
  std::unique_ptr<Worker> trainer_ =
      StartTrainer("trainer", {there_.owner().address(), here_.address()});
};

INSTANTIATE_TEST_SUITE_P(Orders, MixedOwnersTest, ::testing::Values(0, 1, 2));

// The optimizer over both owners scales its losses and meets an infinity on each of them. The other
// one, over CPUs alone, neither scales nor makes the steps that the first one skips.
TEST_P(MixedOwnersTest, ClippedAndScaledStepsEqualThoseOfTheCpuAndAnInfinityChangesNothing) {
  const std::vector<RRef> mixed = Make("mixed", testing::NameOfDevice()),
                          plain = Make("plain", "cpu");
  OptimizerSettings settings;
  settings.loss_scaling = LossScaling::Dynamic(1024);
  settings.loss_scaling.growth_interval = 3;
  const OptimizerSpec spec = Adam{.lr = 0.1, .weight_decay = 0.01};
  auto scaling = Must(DistributedOptimizer::Create(*trainer_, "scaling", spec, mixed, settings));
  auto reference = Must(DistributedOptimizer::Create(*trainer_, "reference", spec, plain));
  StepOptions clipping;
  clipping.clip_norm = 8;
  clipping.clip_value = 1;

  struct Turn {
    std::vector<double> factors;
    double scale;  // before the step
  };
  const std::vector<Turn> turns = {
      {{0.25, -0.5}, 1024}, {{kInfinity, 1}, 1024},   // infinite on the device
      {{1, 2}, 512},        {{0.5, kInfinity}, 512},  // infinite on the CPU
      {{-1, 0.5}, 256},     {{0.01, 0.02}, 256},      // below the norm
      {{2, 1}, 256},        {{1, -1}, 512},           // the scale has grown
  };
  size_t clipped = 0;
  for (const Turn& turn : turns) {
    SCOPED_TRACE(::testing::PrintToString(turn.factors));
    ASSERT_EQ(scaling->LossScale(), turn.scale);
    StepOptions scaled = clipping;
    scaled.loss_scale = turn.scale;
    std::vector<double> factors = turn.factors;
    for (double& each : factors) each *= turn.scale;
    const std::vector<std::vector<float>> before = ReadAll(mixed);
    const std::vector<uint64_t> versions = Versions(mixed);
    const testing::NewKernels kernels(there_.device());
    const StepOutcome outcome = scaling->StepDetailed(Differentiate(mixed, factors), scaled);
    ASSERT_TRUE(outcome.status().ok()) << outcome.status();
    const bool infinite = std::isinf(factors[0] + factors[1]);
    EXPECT_EQ(outcome.skipped, infinite);
    if (infinite) {
      EXPECT_EQ(ReadAll(mixed), before);
      EXPECT_EQ(Versions(mixed), versions);
      continue;
    }
    kernels.ExpectSome();
    const StepOutcome expected =
        reference->StepDetailed(Differentiate(plain, turn.factors), clipping);
    ASSERT_TRUE(expected.status().ok()) << expected.status();
    EXPECT_NEAR(outcome.gradient_norm, expected.gradient_norm, 1e-5 * expected.gradient_norm);
    if (expected.gradient_norm > clipping.clip_norm) ++clipped;
    const auto got = ReadAll(mixed), want = ReadAll(plain);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_THAT(got[i], Pointwise(FloatNear(1e-5f), want[i])) << i;
  }
  EXPECT_EQ(clipped, 4u) << "the first step and another one have smaller gradients";
}

}  // namespace
}  // namespace psd
