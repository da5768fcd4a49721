#include "core/autograd/functions/functions.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/core/autograd/gradient_check.h"
#include "tests/core/tensor/compare.h"

namespace psd {
namespace {

using testing::CheckGradients;
using testing::FakeSink;
using testing::Numbers;
using testing::PositiveNumbers;
using ::testing::TestWithParam;
using ::testing::Values;
using Inputs = absl::Span<const Variable>;

// The parameters are the extents of two shapes that broadcast.
using Extents = std::vector<int64_t>;
class BroadcastTest : public TestWithParam<std::pair<Extents, Extents>> {};

TEST_P(BroadcastTest, Arithmetic) {
  const Tensor a = Numbers(*Shape::Checked(GetParam().first), 1);
  const Tensor b = Numbers(*Shape::Checked(GetParam().second), 2);
  CheckGradients([](Inputs x) { return x[0] + x[1]; }, {a, b});
  CheckGradients([](Inputs x) { return x[0] - x[1]; }, {a, b});
  CheckGradients([](Inputs x) { return x[0] * x[1]; }, {a, b});
  CheckGradients([](Inputs x) { return x[0] / x[1]; }, {a, PositiveNumbers(b.shape(), 3)});
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, BroadcastTest,
    Values(std::make_pair(Extents{}, Extents{}), std::make_pair(Extents{3}, Extents{3}),
           std::make_pair(Extents{2, 3}, Extents{3}), std::make_pair(Extents{2, 3}, Extents{2, 1}),
           std::make_pair(Extents{2, 1}, Extents{1, 3}), std::make_pair(Extents{2, 3}, Extents{}),
           std::make_pair(Extents{1}, Extents{1}), std::make_pair(Extents{2, 1, 2}, Extents{3, 1}),
           std::make_pair(Extents{0, 3}, Extents{3}), std::make_pair(Extents{1, 1}, Extents{4})));

TEST(EmbeddingTest, GradientsOfRepeatedIdsAddUp) {
  const Variable ids(Tensor::Of<int64_t>({2, 2}, {3, 0, 3, 1}));
  CheckGradients([&](Inputs x) { return Embedding(x[0], ids); }, {Numbers({4, 3}, 1)});
}

TEST(EmbeddingTest, BadIdsAndWeightsAreInvalid) {
  const Variable weight(Numbers({4, 3}, 1));
  for (int64_t id : {int64_t{-1}, int64_t{4}})
    EXPECT_FALSE(Embedding(weight, Variable(Tensor::Of<int64_t>({1}, {id}))).ok());
  EXPECT_FALSE(Embedding(weight, weight).ok());
  EXPECT_FALSE(Embedding(Variable(Numbers({4}, 1)), Variable(Tensor::Of<int64_t>({1}, {0}))).ok());
}

// The parameter is a shape, for functions of single elements.
class ElementTest : public TestWithParam<Shape> {};

TEST_P(ElementTest, Functions) {
  const Tensor x = Numbers(GetParam(), 5);
  const Tensor positive = PositiveNumbers(GetParam(), 6);
  CheckGradients([](Inputs v) { return Relu(v[0]); }, {x});
  CheckGradients([](Inputs v) { return Sigmoid(v[0]); }, {x});
  CheckGradients([](Inputs v) { return Tanh(v[0]); }, {x});
  CheckGradients([](Inputs v) { return Exp(v[0]); }, {x});
  CheckGradients([](Inputs v) { return Log(v[0]); }, {positive});
  CheckGradients([](Inputs v) { return Sqrt(v[0]); }, {positive});
  CheckGradients([](Inputs v) { return -v[0]; }, {x});
  CheckGradients([](Inputs v) { return v[0] * v[0]; }, {x});
}

TEST_P(ElementTest, Numbers) {
  const Tensor x = PositiveNumbers(GetParam(), 7);
  CheckGradients([](Inputs v) { return v[0] + 1.5; }, {x});
  CheckGradients([](Inputs v) { return 1.5 + v[0]; }, {x});
  CheckGradients([](Inputs v) { return v[0] - 1.5; }, {x});
  CheckGradients([](Inputs v) { return 1.5 - v[0]; }, {x});
  CheckGradients([](Inputs v) { return v[0] * 1.5; }, {x});
  CheckGradients([](Inputs v) { return 1.5 * v[0]; }, {x});
  CheckGradients([](Inputs v) { return v[0] / 1.5; }, {x});
  CheckGradients([](Inputs v) { return 1.5 / v[0]; }, {x});
}

TEST_P(ElementTest, SumsAndMeansOfAll) {
  const Tensor x = Numbers(GetParam(), 8);
  CheckGradients([](Inputs v) { return Sum(v[0]); }, {x});
  if (x.NumElements() > 0) CheckGradients([](Inputs v) { return Mean(v[0]); }, {x});
}

INSTANTIATE_TEST_SUITE_P(Shapes, ElementTest,
                         Values(Shape{}, Shape{1}, Shape{5}, Shape{2, 3}, Shape{2, 1, 3}, Shape{0},
                                Shape{17}));

TEST(FunctionsTest, SumsAndMeansAlongAxes) {
  const Tensor x = Numbers(Shape{2, 3, 4}, 9);
  for (int64_t axis : {0, 1, 2, -1}) {
    for (bool keepdim : {false, true}) {
      CheckGradients([&](Inputs v) { return Sum(v[0], axis, keepdim); }, {x});
      CheckGradients([&](Inputs v) { return Mean(v[0], axis, keepdim); }, {x});
    }
  }
  CheckGradients([](Inputs v) { return Sum(v[0], 0); }, {Numbers(Shape{0, 2}, 9)});
}

TEST(FunctionsTest, Rows) {
  for (const Shape& shape : {Shape{4}, Shape{3, 5}, Shape{2, 2, 3}, Shape{1, 1}, Shape{0, 3}}) {
    const Tensor x = Numbers(shape, 10);
    CheckGradients([](Inputs v) { return Softmax(v[0]); }, {x});
    CheckGradients([](Inputs v) { return LogSoftmax(v[0]); }, {x});
  }
}

TEST(FunctionsTest, Products) {
  CheckGradients([](Inputs v) { return Matmul(v[0], v[1]); },
                 {Numbers(Shape{3, 4}, 11), Numbers(Shape{4, 2}, 12)});
  CheckGradients([](Inputs v) { return Matmul(v[0], v[1]); },
                 {Numbers(Shape{1, 1}, 11), Numbers(Shape{1, 1}, 12)});
  CheckGradients([](Inputs v) { return Matmul(v[0], v[1]); },
                 {Numbers(Shape{2, 0}, 11), Numbers(Shape{0, 3}, 12)});
  CheckGradients([](Inputs v) { return Linear(v[0], v[1]); },
                 {Numbers(Shape{3, 4}, 13), Numbers(Shape{2, 4}, 14)});
  CheckGradients([](Inputs v) { return Linear(v[0], v[1], v[2]); },
                 {Numbers(Shape{3, 4}, 15), Numbers(Shape{2, 4}, 16), Numbers(Shape{2}, 17)});
  CheckGradients([](Inputs v) { return Linear(v[0], v[1], v[2]); },
                 {Numbers(Shape{0, 4}, 15), Numbers(Shape{2, 4}, 16), Numbers(Shape{2}, 17)});
}

TEST(FunctionsTest, Losses) {
  const Tensor labels = Tensor::Of<int64_t>(Shape{3}, {2, 0, 4});
  CheckGradients([](Inputs v) { return CrossEntropy(v[0], v[1]); },
                 {Numbers(Shape{3, 5}, 18), labels});
  CheckGradients([](Inputs v) { return Mse(v[0], v[1]); },
                 {Numbers(Shape{3, 2}, 19), Numbers(Shape{3, 2}, 20)});
  CheckGradients([](Inputs v) { return Mse(v[0], v[1]); },
                 {Numbers(Shape{}, 19), Numbers(Shape{}, 20)});
}

TEST(FunctionsTest, Shapes) {
  const Tensor x = Numbers(Shape{2, 3, 4}, 21);
  CheckGradients([](Inputs v) { return Reshape(v[0], {4, -1}); }, {x});
  CheckGradients([](Inputs v) { return Transpose(v[0], 0, 2); }, {x});
  CheckGradients([](Inputs v) { return Transpose(v[0], -1, 1); }, {x});
  CheckGradients([](Inputs v) { return Slice(v[0], 1, 1, 3); }, {x});
  CheckGradients([](Inputs v) { return Slice(v[0], -1, 2, 2); }, {x});
  CheckGradients(
      [](Inputs v) {
        return BroadcastTo(v[0], Shape{3, 2, 4});
      },
      {Numbers(Shape{2, 1}, 22)});
  CheckGradients([](Inputs v) { return Concat(v, 1); },
                 {x, Numbers(Shape{2, 1, 4}, 23), Numbers(Shape{2, 0, 4}, 24)});
  CheckGradients([](Inputs v) { return Concat(v, -1); }, {x, x});
}

TEST(FunctionsTest, CastGradientComesBackInTheLeafsDType) {
  Variable x(Tensor::Of<float>(Shape{2}, {1, 2}), true);
  FakeSink sink;
  Variable wide = Cast(x, DType::kF64);
  ASSERT_TRUE(Backward({Sum(wide * wide)}, sink).ok());
  EXPECT_TRUE(ops::Equal(sink.Of(x), Tensor::Of<float>(Shape{2}, {2, 4})));
  EXPECT_FALSE(Cast(x, DType::kI64).requires_grad());
}

TEST(FunctionsTest, OnlyWantedGradientsAreComputed) {
  // Only `w` requires a gradient. The gradient of `x` would need a matrix that was not kept.
  Variable x(Numbers(Shape{2, 3}, 1));
  Variable w(Numbers(Shape{4, 3}, 2), true);
  FakeSink sink;
  ASSERT_TRUE(Backward({Sum(Linear(x, w))}, sink).ok());
  EXPECT_TRUE(sink.Of(w).defined());
  EXPECT_EQ(sink.calls(), 1);
}

TEST(FunctionsTest, ErrorsTravelInTheResult) {
  Variable a(Numbers(Shape{2}, 1), true);
  Variable b(Numbers(Shape{3}, 2));
  Variable sum = a + b;
  EXPECT_EQ(sum.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Relu(Mean(sum * 2.0)).status(), sum.status());
  EXPECT_EQ(Concat({a, sum}, 0).status(), sum.status());
  EXPECT_FALSE(Add(a, Variable()).ok());
  EXPECT_FALSE(Mul(a, Variable(Tensor::Of<float>(Shape{2}, {1, 2}))).ok());
}

TEST(FunctionsTest, NoGradGuardRecordsNothing) {
  Variable a(Numbers(Shape{2}, 1), true);
  {
    NoGradGuard guard;
    EXPECT_FALSE(GradEnabled());
    EXPECT_FALSE((a * 2.0).requires_grad());
  }
  EXPECT_TRUE((a * 2.0).requires_grad());
  EXPECT_FALSE((a.Detach() * 2.0).requires_grad());
}

}  // namespace
}  // namespace psd
