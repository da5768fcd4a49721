// Trainers that compute on a device: the parameters are their own or those of an owner, which may
// have the device too. The tests run with several seeds, which decide in which order emulated
// devices work.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/base/device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_under_test.h"

namespace psd {
namespace {

using ::testing::Each;
using ::testing::FloatNear;
using ::testing::Pointwise;

// ---- a trainer that hosts its parameters itself

class SelfHostedTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    WorkerOptions options;
    options.name = "self";
    options.listen = "127.0.0.1:0";
    options.devices = {device_};
    worker_ = Must(Worker::Start(std::move(options)));
  }
  std::vector<RRef> Make(const std::string& name, const std::string& device) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    std::vector<RRef> made;
    for (const int64_t size : {4, 1500})
      made.push_back(
          Must(worker_->GetOrCreate("self", absl::StrCat(name, size), Full({size}, 2), options)));
    return made;
  }
  // Backward of the sum of w * w * c, where the parameters are.
  Context Differentiate(const std::vector<RRef>& parameters, const std::string& device, double c) {
    Context context = Must(worker_->NewContext());
    CallOptions here;
    here.device = device;
    here.context = &context;
    std::vector<Variable> roots;
    for (const Value& value : Must(worker_->ToHere(parameters, here))) {
      const auto& w = *value.As<Variable>();
      roots.push_back(Sum(w * w * c));
    }
    const absl::Status back = context.Backward(roots);
    EXPECT_TRUE(back.ok()) << back;
    return context;
  }
  void ExpectSame(const std::vector<RRef>& a, const std::vector<RRef>& b) {
    for (size_t i = 0; i < a.size(); ++i)
      EXPECT_THAT(Read(*worker_, a[i]), Pointwise(FloatNear(1e-5f), Read(*worker_, b[i])));
  }

  static testing::DeviceUnderTestOptions Options() {
    testing::DeviceUnderTestOptions options;
    options.budget_bytes = size_t{16} << 20;
    options.seed = GetParam();
    return options;
  }

  const std::string there_ = testing::NameOfDevice();
  const std::shared_ptr<Device> device_ = testing::OpenDeviceUnderTest(Options());
  std::unique_ptr<Worker> worker_;
};

INSTANTIATE_TEST_SUITE_P(Orders, SelfHostedTest, ::testing::Values(0, 1, 2));

TEST_P(SelfHostedTest, AStepCopiesNoGradient) {
  const std::vector<RRef> there = Make("there", there_), here = Make("here", "cpu");
  auto on_device = Must(DistributedOptimizer::Create(*worker_, Adam{0.1}, there));
  auto on_cpu = Must(DistributedOptimizer::Create(*worker_, Adam{0.1}, here));
  StepOptions by_norm;
  by_norm.clip_norm = 0.25;
  for (const StepOptions& options : {StepOptions{}, by_norm, StepOptions{}}) {
    Context context = Differentiate(there, there_, 0.5);
    const std::optional<size_t> copies = testing::CopiesGiven(*device_);
    const absl::Status stepped = on_device->Step(context, options);
    ASSERT_TRUE(stepped.ok()) << stepped;
    if (copies.has_value()) {
      // A norm is one number.
      EXPECT_EQ(*testing::CopiesGiven(*device_) - *copies, options.clip_norm == 0.25 ? 1u : 0u);
    }
    ASSERT_TRUE(on_cpu->Step(Differentiate(here, "cpu", 0.5), options).ok());
  }
  ExpectSame(there, here);
}

TEST_P(SelfHostedTest, AGradientThatIsNotFiniteIsFoundThere) {
  const std::vector<RRef> there = Make("there", there_);
  OptimizerSettings settings;
  settings.loss_scaling = LossScaling::Dynamic();
  auto optimizer = Must(DistributedOptimizer::Create(*worker_, Sgd{0.1}, there, settings));
  StepOptions scaled;
  scaled.loss_scale = optimizer->LossScale();
  Context context = Differentiate(there, there_, 3e38);
  const std::optional<size_t> copies = testing::CopiesGiven(*device_);
  const absl::Status skipped = optimizer->Step(context, scaled);
  ASSERT_TRUE(skipped.ok()) << skipped;
  if (copies.has_value()) {
    EXPECT_EQ(*testing::CopiesGiven(*device_) - *copies, 1u);
  }
  for (const RRef& each : there) EXPECT_THAT(Read(*worker_, each), Each(2.0f));
}

// ---- an owner and a trainer that have a device each

class TrainerOnDeviceTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  static testing::DeviceUnderTestOptions Options() {
    testing::DeviceUnderTestOptions options;
    options.budget_bytes = size_t{64} << 20;
    options.seed = GetParam();
    return options;
  }
  RRef Make(const std::string& name, const std::string& device, int64_t rows) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = device;
    return Must(trainer_->GetOrCreate("owner", name, Uniform({rows, 8}, -1, 1, 7), options));
  }
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    WorkerOptions options;
    options.name = "trainer";
    options.owners = {host_.owner().address()};
    options.devices = {device_};
    trainer_ = Must(Worker::Start(std::move(options)));
  }
  // gmock would take seconds for so many elements.
  static bool AreNear(const std::vector<float>& a, const std::vector<float>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](float x, float y) { return std::abs(x - y) <= 1e-5f; });
  }
  // Makes a step for sum(w * w * 0.5), computed on this device of the trainer.
  void Step(DistributedOptimizer& optimizer, const std::vector<RRef>& parameters,
            const std::string& device) {
    Context context = Must(trainer_->NewContext());
    CallOptions here;
    here.device = device;
    here.context = &context;
    std::vector<Variable> roots;
    for (const Value& value : Must(trainer_->ToHere(parameters, here))) {
      const auto& w = *value.As<Variable>();
      EXPECT_EQ(w.tensor().device(), device == "cpu" ? nullptr : device_.get());
      roots.push_back(Sum(w * w * 0.5));
    }
    const absl::Status back = context.Backward(roots);
    ASSERT_TRUE(back.ok()) << back;
    const absl::Status stepped = optimizer.Step(context);
    ASSERT_TRUE(stepped.ok()) << stepped;
  }

  const std::string there_ = testing::NameOfDevice();
  OwnerUnderTest host_{"owner", {}, Options()};
  const std::shared_ptr<Device> device_ = testing::OpenDeviceUnderTest(Options());
  std::unique_ptr<Worker> trainer_;
};

INSTANTIATE_TEST_SUITE_P(Orders, TrainerOnDeviceTest, ::testing::Values(0, 1, 2));

// Small parameters travel together, large ones in pieces.
TEST_P(TrainerOnDeviceTest, StepsEqualThoseOfTheCpu) {
  struct Place {
    std::string of_parameters, of_trainer;
  };
  for (const Place& place : {Place{there_, there_}, Place{there_, "cpu"}, Place{"cpu", there_}}) {
    const std::string name = absl::StrCat(place.of_parameters, "/", place.of_trainer, "/");
    SCOPED_TRACE(name);
    const std::vector<RRef> there = {Make(name + "small", place.of_parameters, 5),
                                     Make(name + "large", place.of_parameters, 40'000)};
    const std::vector<RRef> here = {Make(name + "small_cpu", "cpu", 5),
                                    Make(name + "large_cpu", "cpu", 40'000)};
    auto on_device = Must(DistributedOptimizer::Create(*trainer_, Adam{.lr = 0.1}, there));
    auto on_cpu = Must(DistributedOptimizer::Create(*trainer_, Adam{.lr = 0.1}, here));
    for (int i = 0; i < 3; ++i) {
      Step(*on_device, there, place.of_trainer);
      Step(*on_cpu, here, "cpu");
    }
    for (size_t i = 0; i < here.size(); ++i)
      EXPECT_TRUE(AreNear(Read(*trainer_, there[i]), Read(*trainer_, here[i]))) << i;
  }
}

}  // namespace
}  // namespace psd
