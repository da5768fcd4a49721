#include "core/autograd/engine.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/autograd/functions/functions.h"
#include "core/autograd/tape.h"
#include "core/base/status.h"
#include "gtest/gtest.h"
#include "tests/core/autograd/gradient_check.h"
#include "tests/core/autograd/scalars.h"
#include "tests/core/tensor/compare.h"

namespace psd {
namespace {

using testing::FakeSink;
using testing::Leaf;
using testing::Value;

TEST(EngineTest, DiamondSumsBothPaths) {
  Variable x = Leaf(3);
  Variable left = x * 2.0;
  Variable right = x * x;
  FakeSink sink;
  ASSERT_TRUE(Backward({left * right}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 54);  // the derivative of 2 x^3 is 6 x^2
  EXPECT_EQ(sink.calls(), 1);
}

TEST(EngineTest, FanInOfMany) {
  Variable x = Leaf(1);
  Variable sum = x * 1.0;
  for (int i = 2; i <= 100; ++i) sum = sum + x * static_cast<double>(i);
  FakeSink sink;
  ASSERT_TRUE(Backward({sum}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 5050);
}

TEST(EngineTest, SharedGradientsAreNotWrittenTo) {
  // One tensor is the gradient of a, of b and of the sum. Adding to one of them must not change it.
  Variable a = Leaf(1);
  Variable b = Leaf(2);
  Variable sum = a + b;
  FakeSink sink;
  ASSERT_TRUE(Backward({sum + sum * 2.0 + a}, sink).ok());
  EXPECT_EQ(Value(sink.Of(a)), 4);
  EXPECT_EQ(Value(sink.Of(b)), 3);
}

TEST(EngineTest, RootTwiceCountsTwice) {
  Variable x = Leaf(3);
  Variable y = x * 5.0;
  FakeSink sink;
  ASSERT_TRUE(Backward({y, y, x * 1.0}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 11);
}

TEST(EngineTest, RootOnTheWayToAnother) {
  Variable x = Leaf(3);
  Variable y = x * 5.0;
  FakeSink sink;
  ASSERT_TRUE(Backward({y * 2.0, y}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 15);
}

// Runs a pass from `loss` on each of `threads` threads at the same time, and returns their results.
std::vector<absl::Status> PassesAtOnce(const Variable& loss, int threads, bool retain) {
  std::vector<absl::Status> ended(static_cast<size_t>(threads));
  std::atomic<int> ready{0};
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      FakeSink sink;
      for (++ready; ready < threads;) std::this_thread::yield();
      ended[static_cast<size_t>(i)] = Backward({loss}, sink, retain);
    });
  }
  for (std::thread& thread : running) thread.join();
  return ended;
}

TEST(EngineTest, PassesOverOneGraphAtOnceEndWellOrSayThatItsValuesAreFreed) {
  for (int round = 0; round < 100; ++round) {
    const Variable x = Leaf(1);
    // The graph has a chain of nodes, and another chain on a tape.
    Variable loss = x * x;
    for (int i = 0; i < 20; ++i) loss = loss * x;
    TapeRecorder tape(20);
    Variable inside = tape.Enter(loss);
    for (int i = 0; i < 20; ++i) inside = inside * inside;
    loss = tape.Leave({inside})[0];
    for (const absl::Status& kept : PassesAtOnce(loss, 4, /*retain=*/true)) EXPECT_TRUE(kept.ok());
    int ended_well = 0;
    for (const absl::Status& ended : PassesAtOnce(loss, 4, /*retain=*/false)) {
      ended_well += ended.ok() ? 1 : 0;
      EXPECT_TRUE(ended.ok() || absl::IsFailedPrecondition(ended)) << ended;
    }
    EXPECT_LE(ended_well, 1);
    FakeSink sink;
    EXPECT_EQ(Backward({loss}, sink).code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(EngineTest, BadRoots) {
  FakeSink sink;
  Variable x = Leaf(1);
  Variable pair(Tensor::Of<double>(Shape{2}, {1, 2}), true);
  for (const std::vector<Variable>& roots :
       {std::vector<Variable>{},
        {Variable()},
        {Variable(Tensor::Scalar(1.0))},
        {x},
        {pair * 2.0},
        {x * 1.0, x + pair + Variable(Tensor::Of<double>(Shape{3}, {1, 2, 3}))}}) {
    const absl::Status refused = Backward(roots, sink);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(GetDetail(refused).value_or(ErrorDetail{}).remedy.empty()) << refused;
  }
  EXPECT_EQ(sink.calls(), 0);
  Variable one_element = Sum(pair * 2.0, 0, true);
  EXPECT_TRUE(Backward({one_element}, sink).ok());
}

TEST(EngineTest, SecondBackwardNeedsRetain) {
  Variable x = Leaf(3);
  Variable y = x * x;
  FakeSink sink;
  ASSERT_TRUE(Backward({y}, sink, true).ok());
  ASSERT_TRUE(Backward({y}, sink).ok());
  absl::Status status = Backward({y}, sink);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("Mul"), std::string::npos) << status;
  EXPECT_NE(status.message().find("retain_graph"), std::string::npos) << status;
  EXPECT_EQ(sink.calls(), 2);
}

TEST(EngineTest, GraphsThatSaveNothingRunAgain) {
  Variable x = Leaf(3);
  Variable y = x + x;
  FakeSink sink;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Backward({y}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 2);
}

// A node that passes its gradient on.
class ForwardNode : public ListNode {
 public:
  using ListNode::ListNode;
  absl::string_view Name() const override { return "Forward"; }
  absl::Status Apply(const PassContext&, absl::Span<Tensor> gradients,
                     absl::Span<Tensor> results) override {
    results[0] = std::move(gradients[0]);
    return absl::OkStatus();
  }
};

// Makes a result that is 100,000 operations away from `x`.
Variable DeepResult(const Variable& x) {
  Edge edge = x.gradient_edge();
  for (int i = 0; i < 100'000; ++i) edge = {std::make_shared<ForwardNode>(Edges{edge}), 0};
  return Variable::OfNode(x.tensor(), edge.node, 0);
}

TEST(EngineTest, DeepGraphsNeitherRunNorDieRecursively) {
  Variable x = Leaf(1);
  FakeSink sink;
  ASSERT_TRUE(Backward({DeepResult(x)}, sink).ok());
  EXPECT_EQ(Value(sink.Of(x)), 1);
}

TEST(EngineTest, AbandonedDeepGraphsDieWithoutRecursion) {
  EXPECT_TRUE(DeepResult(Leaf(1)).requires_grad());
}

TEST(EngineTest, StartsAreFedOverTime) {
  Variable x = Leaf(2);
  Variable shared = x * 3.0;
  Variable a = shared * 10.0;
  Variable b = shared * 100.0;
  FakeSink sink;
  const auto node_a = a.gradient_edge().node;
  const auto node_b = b.gradient_edge().node;
  GraphPass pass({node_a, node_b, node_b}, PassContext{&sink, false});
  ASSERT_TRUE(pass.Feed(node_b, {Tensor::Scalar(1.0)}).ok());
  ASSERT_TRUE(pass.Feed(node_a, {Tensor::Scalar(1.0)}).ok());
  EXPECT_FALSE(pass.Finished());
  EXPECT_EQ(sink.calls(), 0);
  ASSERT_TRUE(pass.Feed(node_b, {Tensor::Scalar(2.0)}).ok());
  EXPECT_TRUE(pass.Finished());
  EXPECT_EQ(Value(sink.Of(x)), 930);
}

TEST(EngineTest, EmptyFeedsPassOver) {
  Variable x = Leaf(2);
  Variable lonely = Leaf(5);
  Variable a = x * 3.0;
  Variable b = x * lonely;
  FakeSink sink;
  const auto node_a = a.gradient_edge().node;
  const auto node_b = b.gradient_edge().node;
  GraphPass pass({node_a, node_b}, PassContext{&sink, false});
  ASSERT_TRUE(pass.Feed(node_a, {Tensor::Scalar(1.0)}).ok());
  EXPECT_EQ(sink.calls(), 0);
  ASSERT_TRUE(pass.Feed(node_b, {}).ok());
  EXPECT_TRUE(pass.Finished());
  EXPECT_EQ(Value(sink.Of(x)), 3);
  EXPECT_FALSE(sink.Of(lonely).defined());
  // The node of `b` did not run, so its saved values are still there.
  EXPECT_TRUE(Backward({b}, sink).ok());
}

TEST(EngineTest, APassForgetsItsNodesOnlyWhenItIsFinished) {
  Variable x = Leaf(2);
  Variable a = x * 3.0;
  FakeSink sink;
  const auto node = a.gradient_edge().node;
  GraphPass pass({node, node}, PassContext{&sink, true});
  ASSERT_TRUE(pass.Feed(node, {Tensor::Scalar(1.0)}).ok());
  pass.Forget();
  ASSERT_TRUE(pass.Feed(node, {Tensor::Scalar(1.0)}).ok());
  EXPECT_EQ(Value(sink.Of(x)), 6);
  pass.Forget();
  EXPECT_TRUE(pass.Finished());
  EXPECT_EQ(pass.Feed(node, {Tensor::Scalar(1.0)}).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(Backward({a}, sink).ok());  // the nodes are free for another pass
}

TEST(EngineTest, UndefinedGradientsCountAsNone) {
  Variable x = Leaf(2);
  Variable a = x * 3.0;
  FakeSink sink;
  const auto node = a.gradient_edge().node;
  GraphPass pass({node}, PassContext{&sink, false});
  ASSERT_TRUE(pass.Feed(node, {Tensor()}).ok());
  EXPECT_TRUE(pass.Finished());
  EXPECT_EQ(sink.calls(), 0);
}

TEST(EngineTest, WrongFeedsAreRefusedAndHarmNothing) {
  Variable x = Leaf(2);
  Variable a = x * 3.0;
  FakeSink sink;
  const auto node = a.gradient_edge().node;
  GraphPass pass({node}, PassContext{&sink, false});
  EXPECT_EQ(pass.Feed(x.gradient_edge().node, {Tensor::Scalar(1.0)}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pass.Feed(nullptr, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pass.Feed(node, {Tensor(), Tensor()}).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(pass.Feed(node, {Tensor::Scalar(1.0)}).ok());
  EXPECT_EQ(pass.Feed(node, {Tensor::Scalar(1.0)}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(pass.Finished());
}

TEST(EngineTest, WrongShapeOrDTypeFails) {
  Variable x(Tensor::Of<double>(Shape{2}, {1, 2}), true);
  Variable y = x + 1.0;
  FakeSink sink;
  const auto node = y.gradient_edge().node;
  for (const Tensor& bad :
       {Tensor::Of<double>(Shape{3}, {1, 2, 3}), Tensor::Of<float>(Shape{2}, {1, 2})}) {
    GraphPass pass({node}, PassContext{&sink, false});
    absl::Status status = pass.Feed(node, {bad});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(bad.ToString()), std::string::npos) << status;
    EXPECT_EQ(pass.status(), status);
  }
  EXPECT_EQ(sink.calls(), 0);
}

TEST(EngineTest, FailEndsThePass) {
  Variable x = Leaf(2);
  Variable a = x * 3.0;
  FakeSink sink;
  const auto node = a.gradient_edge().node;
  GraphPass pass({node}, PassContext{&sink, false});
  pass.Fail(absl::UnavailableError("owner1 is gone"));
  pass.Fail(absl::InternalError("later"));
  EXPECT_EQ(pass.Feed(node, {Tensor::Scalar(1.0)}).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(pass.Finished());
  EXPECT_EQ(sink.calls(), 0);
}

class FailingSink : public GradientSink {
 public:
  absl::Status Accumulate(const LeafInfo&, Tensor) override {
    return absl::ResourceExhaustedError("full");
  }
};

TEST(EngineTest, ErrorsOfNodesEndThePassAndAreNamed) {
  Variable x = Leaf(2);
  FailingSink sink;
  absl::Status status = Backward({x * 3.0}, sink);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("AccumulateGrad"), std::string::npos) << status;
}

TEST(EngineTest, ConcurrentFeedsAddUp) {
  constexpr int kThreads = 4;
  constexpr int kStartsPerThread = 50;
  Variable x(Tensor::Of<double>(Shape{3}, {1, 2, 3}), true);
  Variable shared = x + 0.0;
  std::vector<Variable> results;
  std::vector<std::shared_ptr<Node>> starts;
  for (int i = 0; i < kThreads * kStartsPerThread; ++i) {
    results.push_back(shared * 2.0);
    starts.push_back(results.back().gradient_edge().node);
  }
  FakeSink sink;
  GraphPass pass(starts, PassContext{&sink, false});
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const Tensor ones = Tensor::Of<double>(Shape{3}, {1, 1, 1});
      for (int i = 0; i < kStartsPerThread; ++i)
        if (!pass.Feed(starts[t * kStartsPerThread + i], {ones}).ok()) ++failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_TRUE(pass.Finished());
  EXPECT_TRUE(ops::Equal(sink.Of(x), Tensor::Of<double>(Shape{3}, {400, 400, 400})));
}

TEST(EngineTest, NothingToDo) {
  FakeSink sink;
  GraphPass pass({}, PassContext{&sink, false});
  EXPECT_TRUE(pass.Finished());
  EXPECT_TRUE(pass.status().ok());
}

TEST(VariableTest, LeavesAndKeys) {
  Variable constant(Tensor::Scalar(1.0));
  EXPECT_TRUE(constant.is_leaf());
  EXPECT_FALSE(constant.requires_grad());
  EXPECT_TRUE(constant.key().IsNone());
  Variable a = Leaf(1);
  Variable b = Leaf(1);
  EXPECT_NE(a.key(), b.key());
  EXPECT_EQ(a.key().incarnation, 0u);
  Variable parameter = Variable::Leaf(Tensor::Scalar(1.0), GlobalId{7, 9}, 3);
  EXPECT_EQ(parameter.key(), (GlobalId{7, 9}));
  EXPECT_FALSE((parameter * 2.0).is_leaf());
  EXPECT_TRUE((parameter * 2.0).key().IsNone());
}

TEST(VariableTest, InvalidOnes) {
  EXPECT_FALSE(Variable().ok());
  EXPECT_EQ(Variable().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Variable(Tensor()).ok());
  EXPECT_FALSE(Variable(Tensor::Scalar(int64_t{1}), true).ok());
  EXPECT_FALSE(Variable(*Tensor::Zeros(Shape{2}, DType::kF16), true).ok());
  EXPECT_TRUE(Variable(Tensor::Scalar(int64_t{1})).ok());
  EXPECT_FALSE(Variable().Detach().ok());
}

}  // namespace
}  // namespace psd
