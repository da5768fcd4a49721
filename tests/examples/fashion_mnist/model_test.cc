#include "examples/fashion_mnist/model.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace psd::examples {
namespace {

TEST(PlanModel, NamesAndShapes) {
  const std::vector<ParameterPlan> plan = PlanModel({"owner0"});
  ASSERT_EQ(plan.size(), 6u);
  EXPECT_EQ(plan[0].name, "fashion/layer1/weight");
  EXPECT_EQ(plan[0].shape, (Shape{256, 784}));
  EXPECT_EQ(plan[5].name, "fashion/layer3/bias");
  EXPECT_EQ(plan[5].shape, (Shape{10}));
}

TEST(PlanModel, SpreadsOverOwnersWhateverTheirOrder) {
  const std::vector<ParameterPlan> one = PlanModel({"b", "a"});
  const std::vector<ParameterPlan> other = PlanModel({"a", "b"});
  std::map<std::string, int> parameters;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].owner, other[i].owner);
    ++parameters[one[i].owner];
  }
  EXPECT_EQ(parameters["a"], 1);  // layer1/weight is larger than all others together
  EXPECT_EQ(parameters["b"], 5);
}

TEST(Forward, GivesLogits) {
  std::vector<Variable> parameters;
  for (const ParameterPlan& parameter : PlanModel({"owner0"})) {
    const auto tensor = Tensor::Full(parameter.shape, DType::kF32, 0.5);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    parameters.emplace_back(*tensor);
  }
  const auto images = Tensor::Zeros({2, 784}, DType::kF32);
  ASSERT_TRUE(images.ok()) << images.status();
  const Variable logits = Forward(*images, parameters);
  ASSERT_TRUE(logits.ok()) << logits.status();
  EXPECT_EQ(logits.shape(), (Shape{2, 10}));
  // Layer 1 gives 0.5. Layer 2 multiplies by 256 halves and adds a half, and layer 3 multiplies by
  // 128 halves and adds a half.
  EXPECT_FLOAT_EQ(logits.tensor().data<float>()[0], 64.5f * 64 + 0.5f);
}

}  // namespace
}  // namespace psd::examples
