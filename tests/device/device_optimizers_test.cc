// Every dense optimizer in every mode on a device: its steps give the values of equal parameters on
// the CPU. The tests run with several seeds, which decide in which order an emulated device works.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/dense_optimizers.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_under_test.h"

namespace psd {
namespace {

using ::testing::FloatNear;
using ::testing::Ne;
using ::testing::Pointwise;

class DeviceOptimizersTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  RRef Make(const std::string& name, const std::string& device, DType dtype) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    return Must(
        trainer_->GetOrCreate("owner", name, Uniform({3, 5}, -1, 1, /*seed=*/7, dtype), options));
  }
  // Makes a step for the loss sum(w * w * c) of every parameter.
  absl::Status Step(DistributedOptimizer& optimizer, const std::vector<RRef>& parameters,
                    double c) {
    Context context = Must(trainer_->NewContext());
    std::vector<Variable> roots;
    for (const Variable& w : Must(trainer_->ToHere(parameters, context)))
      roots.push_back(Sum(w * w * c));
    PSD_RETURN_IF_ERROR(context.Backward(roots));
    return optimizer.Step(context);
  }
  std::vector<float> ReadAsFloats(const RRef& parameter) {
    return testing::ReadAsFloats(*trainer_, {parameter});
  }

  OwnerUnderTest host_{"owner", {}, GetParam()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {host_.owner().address()});
};

INSTANTIATE_TEST_SUITE_P(Orders, DeviceOptimizersTest, ::testing::Values(0, 1));

TEST_P(DeviceOptimizersTest, StepsInEveryModeEqualThoseOfTheCpu) {
  const std::vector<UpdateMode> modes = {UpdateMode::Asynchronous(), UpdateMode::Synchronous(1),
                                         UpdateMode::BoundedStaleness(1)};
  for (const OptimizerSpec& spec : testing::DenseOptimizers()) {
    for (const UpdateMode& mode : modes) {
      const std::string label = absl::StrCat(spec.type, " ", mode.ToString());
      SCOPED_TRACE(label);
      OptimizerSettings settings;
      settings.mode = mode;
      const auto steps = [&](const std::string& device) {
        const std::string name =
            absl::StrCat(device, "/", spec.type, "/", static_cast<int>(mode.kind));
        const std::vector<RRef> parameters = {Make(name + "/f32", device, DType::kF32),
                                              Make(name + "/f64", device, DType::kF64)};
        const std::vector<float> before = ReadAsFloats(parameters[0]);
        auto optimizer =
            Must(DistributedOptimizer::Create(*trainer_, name, spec, parameters, settings));
        for (const double c : {0.5, -1.0, 2.0}) {
          const absl::Status stepped = Step(*optimizer, parameters, c);
          EXPECT_TRUE(stepped.ok()) << stepped;
        }
        std::vector<std::vector<float>> ends;
        for (const RRef& each : parameters) ends.push_back(ReadAsFloats(each));
        EXPECT_THAT(ends[0], Ne(before));
        return ends;
      };
      const testing::NewKernels kernels(host_.device());
      const auto there = steps(testing::NameOfDevice());
      kernels.ExpectSome();
      const auto here = steps("cpu");
      for (size_t i = 0; i < here.size(); ++i)
        EXPECT_THAT(there[i], Pointwise(FloatNear(1e-5f), here[i])) << i;
    }
  }
}

}  // namespace
}  // namespace psd
