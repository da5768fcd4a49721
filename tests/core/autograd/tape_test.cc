#include "core/autograd/tape.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/functions/functions.h"
#include "gtest/gtest.h"
#include "tests/core/autograd/gradient_check.h"
#include "tests/core/autograd/scalars.h"

namespace psd {
namespace {

using testing::FakeSink;
using testing::Leaf;
using testing::Value;

// Records x^2 + x y and x^3 on a tape.
std::vector<Variable> Recorded(const Variable& x, const Variable& y) {
  TapeRecorder tape(8);
  const Variable a = tape.Enter(x), b = tape.Enter(y);
  const Variable square = a * a;
  return tape.Leave({square + a * b, square * a});
}

TEST(TapeTest, GradientsAreThoseOfTheGraph) {
  const Variable x = Leaf(3), y = Leaf(5);
  const std::vector<Variable> results = Recorded(x, y);
  EXPECT_EQ(Value(results[0].tensor()), 24);
  EXPECT_EQ(Value(results[1].tensor()), 27);
  FakeSink sink;
  ASSERT_TRUE(Backward({results[0] * 2.0 + results[1]}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 2 * (6 + 5) + 27);
  EXPECT_EQ(Value(sink.Of(y)), 2 * 3);
  EXPECT_EQ(sink.calls(), 2);
}

TEST(TapeTest, AResultThatNobodyUsesHasNoGradient) {
  const Variable x = Leaf(3), y = Leaf(5);
  FakeSink sink;
  ASSERT_TRUE(Backward({Recorded(x, y)[1]}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 27);
  EXPECT_EQ(sink.calls(), 1);
}

TEST(TapeTest, WhatNoResultDependsOnIsForgotten) {
  const Variable x = Leaf(3), y = Leaf(5);
  TapeRecorder tape(4);
  const Variable a = tape.Enter(x), b = tape.Enter(y);
  const Variable unused = b * b;
  const std::vector<Variable> results = tape.Leave({a * 2.0});
  int edges = 0;
  for (const Edge& edge : results[0].gradient_edge().node->next()) edges += edge ? 1 : 0;
  EXPECT_EQ(edges, 1);
  FakeSink sink;
  ASSERT_TRUE(Backward({results[0] * unused.Detach()}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 50);
}

TEST(TapeTest, ArgumentsAndConstantsLeaveAsTheyCame) {
  const Variable x = Leaf(3), constant(Tensor::Scalar(2.0));
  TapeRecorder tape(4);
  const Variable a = tape.Enter(x);
  const std::vector<Variable> results =
      tape.Leave({a, tape.Enter(constant), constant * constant, a});
  EXPECT_EQ(results[0].key(), x.key());
  EXPECT_TRUE(results[3].is_leaf());
  EXPECT_FALSE(results[1].requires_grad());
  EXPECT_FALSE(results[2].requires_grad());
}

TEST(TapeTest, OneResultTwiceCountsTwice) {
  const Variable x = Leaf(3);
  TapeRecorder tape(4);
  const Variable square = tape.Enter(x) * 5.0;
  const std::vector<Variable> results = tape.Leave({square, square});
  FakeSink sink;
  ASSERT_TRUE(Backward({results[0] + results[1]}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 10);
}

TEST(TapeTest, TakesInWhatAnOperatorBringsAlong) {
  const Variable x = Leaf(3), other = Leaf(7) * 2.0;
  TapeRecorder tape(4);
  const std::vector<Variable> results = tape.Leave({tape.Enter(x) * other});
  FakeSink sink;
  ASSERT_TRUE(Backward({results[0]}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 14);
  EXPECT_EQ(sink.calls(), 2);
}

TEST(TapeTest, ASecondBackwardNeedsTheSavedValues) {
  const Variable x = Leaf(3), y = Leaf(5);
  FakeSink sink;
  const Variable kept = Recorded(x, y)[0];
  ASSERT_TRUE(Backward({kept}, sink, /*retain_graph=*/true).ok());
  ASSERT_TRUE(Backward({kept}, sink).ok());
  const absl::Status third = Backward({kept}, sink);
  EXPECT_EQ(third.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(third.message().find("a second backward through Mul"), std::string::npos) << third;
}

TEST(TapeTest, ErrorsNameTheOperator) {
  const Variable x(Tensor::Of<float>({1}, {3}), true);
  TapeRecorder tape(4);
  const std::vector<Variable> results = tape.Leave({Reshape(tape.Enter(x) * x, {1, 1})});
  FakeSink sink;
  const Tensor wrong = Tensor::Of<float>({2}, {1, 1});
  GraphPass pass({results[0].gradient_edge().node}, PassContext{&sink, false});
  const absl::Status status = pass.Feed(results[0].gradient_edge().node, {wrong});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("Reshape"), std::string::npos) << status;
}

TEST(TapeTest, RecordsOnlyWhileItLives) {
  const Variable x = Leaf(3);
  std::optional<TapeRecorder> outer(4);
  {
    TapeRecorder inner(4);
    EXPECT_EQ(TapeRecorder::Current(), &inner);
  }
  EXPECT_EQ(TapeRecorder::Current(), &*outer);
  outer.reset();
  EXPECT_EQ(TapeRecorder::Current(), nullptr);
  EXPECT_EQ((x * x).gradient_edge().node->Name(), "Mul");
}

TEST(TapeTest, IsNotRecordedWithoutHistory) {
  const Variable x = Leaf(3);
  TapeRecorder tape(4);
  NoGradGuard no_grad;
  EXPECT_FALSE(tape.Leave({tape.Enter(x) * 2.0})[0].requires_grad());
}

}  // namespace
}  // namespace psd
