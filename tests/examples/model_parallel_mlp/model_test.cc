#include "examples/model_parallel_mlp/model.h"

#include <memory>
#include <vector>

#include "client/psd.h"
#include "examples/model_parallel_mlp/spirals.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd::examples {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr MlpShape kShape = {2, 16, kSpiralArms};

class ModelParallelMlpTest : public ::testing::Test {
 protected:
  // Returns the parameters of the model as leaves of this trainer.
  std::vector<Variable> LocalCopy() {
    std::vector<Variable> leaves;
    for (const Value& value : Must(trainer_->ToHere(model_.parameters()))) {
      leaves.emplace_back(Must(ReadValue<Tensor>(value)), /*requires_grad=*/true);
    }
    return leaves;
  }
  static Variable LocalLoss(const std::vector<Variable>& p, const LabelledPoints& points) {
    return CrossEntropy(Linear(Relu(Linear(points.x, p[0], p[1])), p[2], p[3]), points.labels);
  }

  TestOwner owner0_{"owner0"};
  TestOwner owner1_{"owner1"};
  std::unique_ptr<Worker> trainer_ =
      StartTrainer("trainer0", {owner0_.address(), owner1_.address()});
  ModelParallelMlp model_ =
      Must(ModelParallelMlp::Create(*trainer_, "owner0", "owner1", kShape, /*seed=*/1));
  LabelledPoints points_ = Must(MakeSpirals(20, /*seed=*/1));
};

TEST_F(ModelParallelMlpTest, LossAndGradientsAreThoseOfTheSameModelHere) {
  const std::vector<Variable> leaves = LocalCopy();
  const Variable expected = LocalLoss(leaves, points_);
  Context context = Must(trainer_->NewContext());
  const Variable loss = Must(model_.Loss(points_.x, points_.labels, context));
  EXPECT_NEAR(loss.tensor().data<float>()[0], expected.tensor().data<float>()[0], 1e-6);

  Context local = Must(trainer_->NewContext());
  ASSERT_TRUE(local.Backward({expected}).ok());
  ASSERT_TRUE(context.Backward({loss}).ok());
  const std::vector<RRef> parameters = model_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_THAT(Elements(Must(context.Gradient(parameters[i]))),
                Pointwise(FloatNear(1e-6), Elements(Must(local.Gradient(leaves[i])))));
  }
}

TEST_F(ModelParallelMlpTest, EachLayerLivesOnItsOwner) {
  const std::vector<RRef> parameters = model_.parameters();
  ASSERT_EQ(parameters.size(), 4u);
  EXPECT_EQ(parameters[0].owner(), "owner0");
  EXPECT_EQ(parameters[1].owner(), "owner0");
  EXPECT_EQ(parameters[2].owner(), "owner1");
  EXPECT_EQ(parameters[3].owner(), "owner1");
}

TEST_F(ModelParallelMlpTest, TrainingMakesTheLossFall) {
  Adam adam;
  adam.lr = 0.02;
  const auto optimizer =
      Must(DistributedOptimizer::Create(*trainer_, "mlp", adam, model_.parameters()));
  const double first = Must(TrainStep(*trainer_, model_, *optimizer, points_.x, points_.labels));
  double last = first;
  for (int step = 0; step < 150; ++step) {
    last = Must(TrainStep(*trainer_, model_, *optimizer, points_.x, points_.labels));
  }
  EXPECT_LT(last, first / 4);
  EXPECT_GT(Accuracy(Must(model_.Logits(points_.x)), points_.labels), 0.9);
}

TEST_F(ModelParallelMlpTest, ASecondTrainerTakesPartInTheSameModel) {
  const auto other = StartTrainer("trainer1", {owner0_.address(), owner1_.address()});
  const auto theirs = Must(ModelParallelMlp::Create(*other, "owner0", "owner1", kShape, 1));
  EXPECT_EQ(Elements(Must(theirs.Logits(points_.x))), Elements(Must(model_.Logits(points_.x))));
}

}  // namespace
}  // namespace psd::examples
