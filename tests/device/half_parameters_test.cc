// Parameters of f16 and bf16 on a device: the steps of every dense optimizer give the values of
// equal parameters on the CPU. The tests run with several seeds, which decide in which order an
// emulated device works.

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/tensor/dtype.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/dense_optimizers.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_under_test.h"
#include "tests/kernels/cpu_fuses.h"

namespace psd {
namespace {

using ::testing::FloatNear;
using ::testing::Ne;
using ::testing::Pointwise;

// Parameters of f16 and of bf16, which are rounded to the nearest, and of bf16, which are rounded
// at random. The latter are a group of their own.
class HalfModel {
 public:
  HalfModel(Worker& trainer, const std::string& device, const OptimizerSpec& spec)
      : trainer_(trainer) {
    std::vector<ParameterGroup> groups(2);
    groups[1].options = {{"stochastic_rounding", 1}};
    const std::string prefix = absl::StrCat(spec.type, "/", device, "/");
    const auto make = [&](ParameterGroup& group, const char* name, DType dtype) {
      // Elements are rounded at random in chunks of 1,024, each with a key of its own.
      rrefs_.push_back(testing::MakeOn(trainer, device, prefix + name, 1500, dtype));
      group.parameters.push_back(rrefs_.back());
    };
    make(groups[0], "f16", DType::kF16);
    make(groups[0], "bf16", DType::kBF16);
    make(groups[1], "at_random", DType::kBF16);
    optimizer_ = Must(DistributedOptimizer::Create(trainer_, spec, groups));
  }

  // Makes a step for the loss sum(w * w * c) of every parameter, which is computed in f32.
  void Step(double c) {
    const absl::Status stepped = testing::StepSquares(trainer_, rrefs_, *optimizer_, c);
    ASSERT_TRUE(stepped.ok()) << stepped;
  }
  // Returns the elements of each parameter.
  std::vector<std::vector<float>> Read() {
    std::vector<std::vector<float>> all;
    for (const RRef& each : rrefs_) all.push_back(testing::ReadAsFloats(trainer_, {each}));
    return all;
  }

 private:
  Worker& trainer_;
  std::vector<RRef> rrefs_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

class HalfParametersTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  OwnerUnderTest host_{"owner", {}, GetParam()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
};

INSTANTIATE_TEST_SUITE_P(Orders, HalfParametersTest, ::testing::Values(0, 1));

// They have the same bits where the CPU's kernels fuse. Elsewhere an element is rounded to a
// neighbour now and then.
TEST_P(HalfParametersTest, StepsOfEveryOptimizerEqualThoseOfTheCpu) {
  for (const OptimizerSpec& spec : testing::DenseOptimizers()) {
    SCOPED_TRACE(spec.type);
    HalfModel there(*trainer_, testing::NameOfDevice(), spec), here(*trainer_, "cpu", spec);
    const std::vector<std::vector<float>> before = there.Read();
    ASSERT_EQ(before, here.Read());
    ASSERT_EQ(before[1], before[2]);
    for (const double c : {0.5, -1.0, 2.0, 0.25, 1.0}) {
      SCOPED_TRACE(c);
      const testing::NewKernels kernels(host_.device());
      there.Step(c);
      kernels.ExpectSome();
      here.Step(c);
      const std::vector<std::vector<float>> got = there.Read(), want = here.Read();
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_THAT(got[i], Ne(before[i])) << i;
        if (testing::CpuFuses()) {
          EXPECT_EQ(got[i], want[i]) << i;
        } else {
          EXPECT_THAT(got[i], Pointwise(FloatNear(1.0f / 16), want[i])) << i;
        }
      }
      EXPECT_THAT(got[2], Ne(got[1])) << "the rounding at random gives other elements";
    }
  }
}

// With the same gradient each time, bf16 that is rounded to the nearest stands still: the step is
// less than half of the distance to the next number.
TEST_P(HalfParametersTest, RoundingAtRandomMovesByStepsThatAreTooSmallForTheNearest) {
  std::vector<ParameterGroup> groups(2);
  std::vector<RRef> both;
  const Tensor ones = Must(Tensor::Full({1024}, DType::kBF16, 1));
  for (size_t i = 0; i < 2; ++i) {
    both.push_back(testing::MakeOn(*trainer_, testing::NameOfDevice(), absl::StrCat("w", i), 1024,
                                   DType::kBF16));
    Must(trainer_->Assign(both[i], ones));
    groups[i].parameters = {both[i]};
  }
  groups[1].options = {{"stochastic_rounding", 1}};
  // Ten steps of 2^-12 each; the distance below 1 is 2^-8.
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Adam{.lr = 0x1p-12}, groups));
  for (int i = 0; i < 10; ++i) {
    Context context = Must(trainer_->NewContext());
    std::vector<Variable> roots;
    for (const Variable& w : Must(trainer_->ToHere(both, context)))
      roots.push_back(Sum(Cast(w, DType::kF32) * 0.5));
    ASSERT_TRUE(context.Backward(roots).ok());
    const absl::Status stepped = optimizer->Step(context);
    ASSERT_TRUE(stepped.ok()) << stepped;
  }
  std::vector<double> means;
  for (const RRef& each : both) {
    const std::vector<float> elements = testing::ReadAsFloats(*trainer_, {each});
    means.push_back(std::accumulate(elements.begin(), elements.end(), 0.0) / 1024);
  }
  EXPECT_EQ(means[0], 1);
  // Each element moves by one distance with a chance of a sixteenth a step: the mean's standard
  // deviation is 0.0001. The seed of the rounding is fixed, so the test is too.
  EXPECT_NEAR(means[1], 1 - 10 * 0x1p-12, 0.0005);
}

}  // namespace
}  // namespace psd
