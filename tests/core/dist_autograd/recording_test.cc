// Contexts record the calls that are made in them.

#include <algorithm>
#include <string>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/functions/functions.h"
#include "core/dist_autograd/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/dist_autograd_fixture.h"

namespace psd::dist_autograd {
namespace {

using ::testing::HasSubstr;

// Checks how many send and recv functions a worker's part of a context has recorded.
void ExpectMessages(const ContextState& context, size_t sends, size_t recvs) {
  EXPECT_EQ(context.stats().sends, sends);
  EXPECT_EQ(context.stats().recvs, recvs);
}

TEST_P(DistAutogradTest, DAG_01_ContextsAreDistinctAndGoneAfterRelease) {
  std::vector<GlobalId> ids;
  for (int i = 0; i < 200; ++i) {
    ContextPtr context = trainer_.autograd->NewContext();
    EXPECT_TRUE(trainer_.autograd->Find(context->id()).ok());
    ids.push_back(context->id());
    trainer_.autograd->Release(context->id());
    absl::Status gone = trainer_.autograd->Find(context->id()).status();
    EXPECT_EQ(gone.code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(gone.message()), HasSubstr("could not find autograd context"));
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
}

TEST_P(DistAutogradTest, DAG_02_OneThreadMayHaveSeveralContextsAndTheyDoNotMix) {
  ContextPtr outer = trainer_.autograd->NewContext(), inner = trainer_.autograd->NewContext();
  Variable x(Vector({1, 2}), true);
  trainer_.Call(outer, "owner0", "mul", {x, x});
  trainer_.Call(inner, "owner1", "mul", {x, x});
  trainer_.Call(outer, "owner0", "mul", {x, x});
  ExpectMessages(*outer, 2, 2);
  ExpectMessages(*inner, 1, 1);
  EXPECT_EQ(outer->KnownWorkers(), std::vector<std::string>{"owner0"});
  EXPECT_EQ(inner->KnownWorkers(), std::vector<std::string>{"owner1"});
  trainer_.autograd->Release(inner->id());
  trainer_.Call(outer, "owner1", "mul", {x, x});
  ExpectMessages(*outer, 3, 3);
}

TEST_P(DistAutogradTest, DAG_03_SendsAndRecvsOfOneCall) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a(Vector({1, 2}), true), b(Vector({3, 4}), true);
  Variables out = trainer_.Call(context, "owner0", "mul", {a, b});
  ContextState& there = PartAt(owner0_, context);
  ExpectMessages(*context, 1, 1);
  ExpectMessages(there, 1, 1);
  auto send = context->Sends()[0];
  ASSERT_EQ(send->next().size(), 2u);
  EXPECT_EQ(send->next()[0].node, a.gradient_edge().node);
  EXPECT_EQ(send->next()[1].node, b.gradient_edge().node);
  EXPECT_NE(dynamic_cast<RecvFunction*>(out[0].gradient_edge().node.get()), nullptr);
  EXPECT_FALSE(out[0].is_leaf());

  auto answer = there.Sends()[0];
  ASSERT_EQ(answer->next().size(), 1u);
  const absl::Span<const Edge> factors = answer->next()[0].node->next();
  ASSERT_EQ(factors.size(), 2u);
  EXPECT_EQ(factors[0].node, factors[1].node) << "one recv for both";
  EXPECT_NE(dynamic_cast<RecvFunction*>(factors[0].node.get()), nullptr);
  EXPECT_EQ(factors[0].input, 0);
  EXPECT_EQ(factors[1].input, 1);
}

TEST_P(DistAutogradTest, DAG_04_ANestedCallHasTwoSendsAndTwoRecvsInTheMiddle) {
  ContextPtr context = trainer_.autograd->NewContext();
  trainer_.Call(context, "owner0", "nested", {Variable(Vector({1, 2}), true)});
  ExpectMessages(*context, 1, 1);
  ExpectMessages(PartAt(owner0_, context), 2, 2);
  ExpectMessages(PartAt(owner1_, context), 1, 1);
}

TEST_P(DistAutogradTest, DAG_05_ANestedCallBackToTheOrigin) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "and_back", {x})[0];  // w · x²
  ExpectMessages(*context, 2, 2);
  ExpectMessages(PartAt(owner0_, context), 2, 2);
  ASSERT_TRUE(trainer_.Backward(context, {Sum(out)}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{4, 30}));
  EXPECT_EQ(GradientAt(trainer_, context, KeyOf(trainer_)), (Floats{1, 25}));
}

TEST_P(DistAutogradTest, DAG_06_NoGradNoFunctionsYetTheContextIsThere) {
  ContextPtr context = trainer_.autograd->NewContext();
  trainer_.Call(context, "owner0", "mul", {Variable(Vector({1, 2})), Variable(Vector({3, 4}))});
  ContextState& there = **owner0_.autograd->Find(context->id());
  EXPECT_EQ(context->stats().sends + context->stats().recvs, 0u);
  EXPECT_EQ(there.stats().sends + there.stats().recvs, 0u);
  EXPECT_EQ(context->KnownWorkers(), std::vector<std::string>{"owner0"});
}

TEST_P(DistAutogradTest, DAG_07_WorkersThatMessagesOfTheContextWentToOrCameFrom) {
  ContextPtr context = trainer_.autograd->NewContext();
  EXPECT_TRUE(context->KnownWorkers().empty());
  trainer_.Call(nullptr, "owner2", "fetch", {});
  trainer_.Call(context, "owner0", "nested", {Variable(Vector({1, 2}))});
  EXPECT_EQ(context->KnownWorkers(), std::vector<std::string>{"owner0"});
  EXPECT_EQ(PartAt(owner0_, context).KnownWorkers(),
            (std::vector<std::string>{"trainer0", "owner1"}));
  EXPECT_EQ(PartAt(owner1_, context).KnownWorkers(), std::vector<std::string>{"owner0"});
  EXPECT_FALSE(owner2_.autograd->Find(context->id()).ok());
}

TEST_P(DistAutogradTest, ABackwardTellsWhomItReachedThroughOthers) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable out = trainer_.Call(context, "owner0", "nested", {Variable(Vector({1, 2}), true)})[0];
  EXPECT_EQ(context->Reached(), std::vector<std::string>{"owner0"});
  ASSERT_TRUE(trainer_.Backward(context, {Sum(out)}).ok());
  EXPECT_EQ(context->Reached(), (std::vector<std::string>{"owner0", "owner1"}));
  EXPECT_EQ(context->KnownWorkers(), std::vector<std::string>{"owner0"});
}

TEST_P(DistAutogradTest, DAG_10_ReceivedTensorsKeepTheirFlagAndAreNoLeaves) {
  ContextPtr context = trainer_.autograd->NewContext();
  owner0_.functions["look"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
    EXPECT_TRUE(v[0].requires_grad());
    EXPECT_FALSE(v[0].is_leaf());
    EXPECT_FALSE(v[1].requires_grad());
    EXPECT_TRUE(v[1].is_leaf());
    return Variables{};
  };
  trainer_.Call(context, "owner0", "look", {Variable(Vector({1}), true), Variable(Vector({2}))});
}

TEST_P(DistAutogradTest, DAG_48_CountsOfContextsAndPassesAreZeroAtRest) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "nested", {x})[0];
  EXPECT_EQ(trainer_.autograd->stats().contexts, 1u);
  EXPECT_EQ(owner0_.autograd->stats().contexts, 1u);
  EXPECT_EQ(owner2_.autograd->stats().contexts, 0u);
  ExpectAtRest();
  auto done = trainer_.autograd->Backward(context, {Sum(out)}, {});
  EXPECT_EQ(trainer_.autograd->stats().running_passes, 1u);
  network_.RunUntil(done);
  ExpectAtRest();
  trainer_.autograd->Release(context->id());
  network_.RunAll();
  ExpectNoContexts();
}

TEST_P(DistAutogradTest, DAG_57_OutsideAContextResultsAreConstants) {
  Variable w = trainer_.Call(nullptr, "owner0", "fetch", {})[0];
  EXPECT_FALSE(w.requires_grad());
}

TEST_P(DistAutogradTest, GradientsThatDoNotFitChangeNothing) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  auto send = (*owner0_.autograd->Find(context->id()))->Sends()[0];
  EXPECT_TRUE(send->CheckGradients({}).ok());
  EXPECT_TRUE(send->CheckGradients({Vector({1, 2})}).ok());
  for (const Tensors& wrong : {Tensors{Vector({1, 2, 3})}, Tensors{Tensor::Of<double>({2}, {1, 2})},
                               Tensors{Vector({1, 2}), Vector({1, 2})}}) {
    EXPECT_EQ(send->CheckGradients(wrong).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(DistAutogradTest, DAG_58_ASendFunctionRefusesWrongNumbersAndNothingAtAll) {
  Variable x(Vector({1, 5}), true);
  SendFunction send({1, 1}, {x, x});
  PassContext pass;
  const auto code = [&](Tensors gradients) {
    Tensors results(2);
    return send.Apply(pass, absl::MakeSpan(gradients), absl::MakeSpan(results)).code();
  };
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Vector({1, 1})}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Tensor(), Tensor()}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Vector({1, 1}), Vector({1, 1})}), absl::StatusCode::kOk);
  const Tensor fits = Vector({1, 1});
  for (const Tensors& wrong : {Tensors{fits}, Tensors{fits, Vector({1, 1, 1})},
                               Tensors{Tensor::Of<double>({2}, {1, 1}), fits}}) {
    EXPECT_EQ(send.CheckGradients(wrong).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(send.CheckGradients({fits, Tensor()}).ok());
}

TEST_P(DistAutogradTest, ALocalBackwardThatReachesAMessageIsAnError) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  Collected sink;
  EXPECT_EQ(Backward({Sum(w)}, sink).code(), absl::StatusCode::kFailedPrecondition);
}

INSTANTIATE_TEST_SUITE_P(Orders, DistAutogradTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace psd::dist_autograd
