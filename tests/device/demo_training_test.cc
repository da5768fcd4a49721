// The training of the demo, with the parameters on the CPU and on a device of the owner.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "client/psd.h"
#include "core/tensor/tensor.h"
#include "examples/fashion_mnist/dataset.h"
#include "examples/fashion_mnist/model.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_under_test.h"

namespace psd {
namespace {

using examples::kClasses;
using examples::kImagePixels;

constexpr int64_t kImages = 100;  // in a batch
constexpr int kSteps = 25;

// Returns noisy images with one bright band each. The label is the position of the band.
examples::Batch Bands(uint32_t seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> noise(0, 0.3f);
  examples::Batch batch;
  batch.images = Must(Tensor::Empty({kImages, kImagePixels}, DType::kF32));
  batch.labels = Must(Tensor::Empty({kImages}, DType::kI64));
  constexpr int64_t kBand = kImagePixels / kClasses;
  for (int64_t i = 0; i < kImages; ++i) {
    const auto label = static_cast<int64_t>(random() % kClasses);
    batch.labels.mutable_data<int64_t>()[i] = label;
    float* const image = batch.images.mutable_data<float>() + i * kImagePixels;
    for (int64_t pixel = 0; pixel < kImagePixels; ++pixel)
      image[pixel] = noise(random) + (pixel / kBand == label ? 0.7f : 0.0f);
  }
  return batch;
}

// The share of images whose largest logit is that of their label.
double Accuracy(const examples::Batch& batch, const std::vector<Variable>& model) {
  const Variable logits = examples::Forward(Variable(batch.images), model);
  EXPECT_TRUE(logits.status().ok()) << logits.status();
  int correct = 0;
  for (int64_t i = 0; i < kImages; ++i) {
    const float* const row = logits.tensor().data<float>() + i * kClasses;
    correct += std::max_element(row, row + kClasses) - row == batch.labels.data<int64_t>()[i];
  }
  return static_cast<double>(correct) / kImages;
}

class DemoTrainingTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  struct Outcome {
    std::vector<float> losses;  // of all steps
    double accuracy = 0;        // on images that were not trained on
  };

  Outcome Train(const std::string& device) {
    const std::string name = device == "cpu" ? "trainer_cpu" : "trainer_device";
    const std::unique_ptr<Worker> trainer = StartTrainer(name, {host_.owner().address()});
    std::vector<examples::ParameterPlan> plan = examples::PlanModel({"owner"});
    for (examples::ParameterPlan& parameter : plan) parameter.name = device + parameter.name;
    const std::vector<RRef> parameters =
        Must(examples::AttachModel(*trainer, plan, /*seed=*/1, device));
    const auto optimizer = Must(DistributedOptimizer::Create(*trainer, Adam{2e-3}, parameters));
    Outcome outcome;
    for (int step = 0; step < kSteps; ++step) {
      const examples::Batch batch = Bands(static_cast<uint32_t>(step + 1));
      Context context = Must(trainer->NewContext());
      const std::vector<Variable> values = Must(trainer->ToHere(parameters, context));
      const Variable loss =
          CrossEntropy(examples::Forward(Variable(batch.images), values), Variable(batch.labels));
      EXPECT_TRUE(context.Backward({loss}).ok());
      const absl::Status stepped = optimizer->Step(context);
      EXPECT_TRUE(stepped.ok()) << stepped;
      outcome.losses.push_back(loss.tensor().data<float>()[0]);
    }
    std::vector<Variable> model;
    for (const PulledParameter& each : Must(trainer->Pull(parameters)))
      model.emplace_back(each.elements);
    outcome.accuracy = Accuracy(Bands(1000), model);
    return outcome;
  }

  static testing::DeviceUnderTestOptions Options() {
    testing::DeviceUnderTestOptions options;
    options.budget_bytes = size_t{32} << 20;
    options.seed = GetParam();
    return options;
  }

  OwnerUnderTest host_{"owner", {}, Options()};
};

INSTANTIATE_TEST_SUITE_P(Orders, DemoTrainingTest, ::testing::Values(1, 2));

TEST_P(DemoTrainingTest, LearnsAsWellOnADeviceAsOnTheCpu) {
  const Outcome on_cpu = Train("cpu");
  const Outcome on_device = Train(testing::NameOfDevice());
  EXPECT_GT(on_cpu.accuracy, 0.9);
  EXPECT_NEAR(on_device.accuracy, on_cpu.accuracy, 0.03);
  for (size_t step = 0; step < kSteps; ++step)
    EXPECT_NEAR(on_device.losses[step], on_cpu.losses[step], 1e-2) << "step " << step;
}

}  // namespace
}  // namespace psd
