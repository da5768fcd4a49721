// Gradients of passes that succeed.

#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/functions/functions.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/dist_autograd_fixture.h"

namespace psd::dist_autograd {
namespace {

TEST_P(DistAutogradTest, DAG_08_DAG_23_TheGradientOfARemoteLeafLandsOnItsOwner) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  EXPECT_EQ(context->stats().sends, 0u);
  EXPECT_EQ(context->stats().recvs, 1u);
  ASSERT_TRUE(trainer_.Backward(context, {Sum(Mul(w, w))}).ok());
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{4, 6}));
  EXPECT_EQ(context->Gradients()->size(), 0u);
  EXPECT_EQ(network_.Count("autograd.gradient"), 1) << "marks ride the gradient";
  EXPECT_EQ(network_.Count("autograd.mark"), 0);
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_09_DAG_11_OnlyWhatRequiresGradHasEdges) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a(Vector({1, 2}), true), b(Vector({3, 4}));
  Variables out = trainer_.Call(context, "owner0", "mul", {b, a});
  ASSERT_EQ(context->Sends()[0]->next().size(), 1u);
  ASSERT_TRUE(trainer_.Backward(context, {Sum(out[0])}).ok());
  ASSERT_EQ(context->Gradients()->size(), 1u);
  EXPECT_EQ(GradientAt(trainer_, context, a.key()), (Floats{3, 4}));
}

TEST_P(DistAutogradTest, DAG_12_ArgumentsThatRequireGradEqualLocalAutograd) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a(Vector({1, 2}), true), b(Vector({3, 4}), true);
  Variable once = trainer_.Call(context, "owner0", "mul", {a, b})[0];
  Variable twice = trainer_.Call(context, "owner0", "add", {once, Mul(a, a)})[0];
  Variable loss = Sum(Mul(twice, trainer_.Call(context, "owner1", "mul", {once, b})[0]));
  ASSERT_TRUE(trainer_.Backward(context, {loss}).ok());
  Variable local = Mul(a, b);
  Collected expected;
  ASSERT_TRUE(Backward({Sum(Mul(Add(local, Mul(a, a)), Mul(local, b)))}, expected).ok());
  EXPECT_EQ(GradientAt(trainer_, context, a.key()), Numbers(expected.gradients[a.key()]));
  EXPECT_EQ(GradientAt(trainer_, context, b.key()), Numbers(expected.gradients[b.key()]));
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_13_CallsToSelf) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a(Vector({1, 2}), true);
  Variable out = trainer_.Call(context, "trainer0", "times_weight", {a})[0];
  out = trainer_.Call(context, "trainer0", "times_weight", {out})[0];
  EXPECT_EQ(context->stats().sends, 4u);
  EXPECT_EQ(context->stats().recvs, 4u);
  ASSERT_TRUE(trainer_.Backward(context, {Sum(out)}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, a.key()), (Floats{4, 9}));
  EXPECT_EQ(GradientAt(trainer_, context, KeyOf(trainer_)), (Floats{4, 12}));
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_13_CallsOfAnOwnerToItself) {
  owner0_.functions["twice"] = [](TestWorker& self, const ContextPtr& context, const Variables& v) {
    Variable inner = self.Call(context, "owner0", "times_weight", v)[0];
    return self.Call(context, "owner0", "mul", {inner, v[0]});
  };
  for (BackwardMode mode : {BackwardMode::kExact, BackwardMode::kFast}) {
    ContextPtr context = trainer_.autograd->NewContext();
    Variable x(Vector({1, 5}), true);
    Variable out = trainer_.Call(context, "owner0", "twice", {x})[0];  // w · x²
    absl::Status status = trainer_.Backward(context, {Sum(out)}, InMode(mode));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{4, 30}));
    EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{1, 25}));
  }
}

TEST_P(DistAutogradTest, DAG_14_ManyRoundTripsBetweenTwoOwners) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 1}), true), t = x;
  for (int i = 0; i < 6; ++i) {
    t = trainer_.Call(context, i % 2 == 0 ? "owner0" : "owner1", "mul", {t, x})[0];
  }
  ASSERT_TRUE(trainer_.Backward(context, {Sum(t)}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{7, 7}));
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_15_ChangingShapesAndMatrices) {
  for (TestWorker* worker : {&owner0_, &owner1_}) {
    worker->functions["matmul"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
      return Variables{Matmul(v[0], v[1])};
    };
  }
  Variable a(Tensor::Of<float>({2, 3}, {1, 2, 3, 4, 5, 6}), true);
  Variable b(Tensor::Of<float>({3, 1}, {1, -1, 2}), true);
  Variable row(Vector({1, 2, 3, 4}), true);
  const auto forward = [&](auto&& matmul, auto&& add) {
    Variable column = matmul("owner0", a, b);                                 // [2, 1]
    Variable wide = add("owner1", column, row);                               // [2, 4]
    return Sum(matmul("owner1", Transpose(wide, 0, 1), Reshape(a, {2, 3})));  // [4, 3]
  };
  ContextPtr context = trainer_.autograd->NewContext();
  const auto remote = [&](const char* function) {
    return [&, function](const char* owner, const Variable& x, const Variable& y) {
      return trainer_.Call(context, owner, function, {x, y})[0];
    };
  };
  ASSERT_TRUE(trainer_.Backward(context, {forward(remote("matmul"), remote("add"))}).ok());
  Collected local;
  ASSERT_TRUE(
      psd::Backward({forward([](auto, const auto& x, const auto& y) { return Matmul(x, y); },
                             [](auto, const auto& x, const auto& y) { return Add(x, y); })},
                    local)
          .ok());
  for (const Variable& leaf : {a, b, row}) {
    EXPECT_EQ(GradientAt(trainer_, context, leaf.key()), Numbers(local.gradients[leaf.key()]));
  }
}

TEST_P(DistAutogradTest, DAG_16_OwnersThatCallOwners) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "nested", {x})[0];  // 2 · w · x²
  ASSERT_TRUE(trainer_.Backward(context, {Sum(out)}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{8, 60}));
  EXPECT_EQ(GradientAt(owner1_, context, KeyOf(owner1_)), (Floats{2, 50}));
  EXPECT_GT(network_.Count("autograd.mark"), 0);
  ExpectAtRest();
}

TEST_P(DistAutogradTest, DAG_17_PathsMeetAcrossFourWorkers) {
  owner0_.functions["diamond"] = [](TestWorker& self, const ContextPtr& context,
                                    const Variables& v) {
    Variable left = self.Call(context, "owner1", "times_weight", v)[0];
    Variable right = self.Call(context, "owner2", "times_weight", v)[0];
    return Variables{Mul(left, right)};
  };
  for (BackwardMode mode : {BackwardMode::kExact, BackwardMode::kFast}) {
    ContextPtr context = trainer_.autograd->NewContext();
    Variable x(Vector({1, 5}), true);
    Variable top = trainer_.Call(context, "owner0", "diamond", {x})[0];  // w² · x²
    Variable side = trainer_.Call(context, "owner1", "times_weight", {x})[0];
    Variable join = trainer_.Call(context, "owner2", "add", {top, side})[0];
    ASSERT_TRUE(trainer_.Backward(context, {Sum(join)}, InMode(mode)).ok());
    EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{8 + 2, 90 + 3}));
    EXPECT_EQ(GradientAt(owner1_, context, KeyOf(owner1_)), (Floats{2 + 1, 75 + 5}));
    EXPECT_EQ(GradientAt(owner2_, context, KeyOf(owner2_)), (Floats{2, 75}));
    network_.RunAll();
    ExpectAtRest();
  }
}

TEST_P(DistAutogradTest, DAG_18_DAG_19_SeveralRootsAndOneTwice) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a = trainer_.Call(context, "owner0", "fetch", {})[0];
  Variable b = trainer_.Call(context, "owner1", "fetch", {})[0];
  Variable loss = Sum(Mul(b, 3));
  ASSERT_TRUE(trainer_.Backward(context, {Sum(a), loss, loss}).ok());
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{1, 1}));
  EXPECT_EQ(GradientAt(owner1_, context, KeyOf(owner1_)), (Floats{6, 6}));
}

TEST_P(DistAutogradTest, DAG_20_AnIgnoredArgumentHasNoGradientAndInFastModeZero) {
  for (BackwardMode mode : {BackwardMode::kExact, BackwardMode::kFast}) {
    ContextPtr context = trainer_.autograd->NewContext();
    Variable a(Vector({1, 2}), true), b(Vector({1, 2}), true);
    Variable out = trainer_.Call(context, "owner0", "mul", {a, a})[0];
    Variable first = trainer_.Call(context, "owner0", "first", {out, b})[0];
    ASSERT_TRUE(trainer_.Backward(context, {Sum(first)}, InMode(mode)).ok());
    EXPECT_EQ(GradientAt(trainer_, context, a.key()), (Floats{4, 8}));
    EXPECT_EQ(GradientAt(trainer_, context, b.key()),
              mode == BackwardMode::kFast ? (Floats{0, 0}) : Floats{});
  }
}

TEST_P(DistAutogradTest, DAG_21_SomeOfSeveralResults) {
  for (BackwardMode mode : {BackwardMode::kExact, BackwardMode::kFast}) {
    ContextPtr context = trainer_.autograd->NewContext();
    Variable x(Vector({1, 5}), true);
    Variables out = trainer_.Call(context, "owner0", "several", {x});
    ASSERT_EQ(out.size(), 3u);
    ASSERT_TRUE(trainer_.Backward(context, {Sum(Add(out[0], Mul(out[2], 10)))}, InMode(mode)).ok());
    EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{42, 42}));
  }
}

TEST_P(DistAutogradTest, DAG_22_EveryGradientHasItsTensorsDtype) {
  owner0_.functions["wide_mul"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
    return Variables{Mul(Cast(v[0], DType::kF64), v[1])};
  };
  for (BackwardMode mode : {BackwardMode::kExact, BackwardMode::kFast}) {
    ContextPtr context = trainer_.autograd->NewContext();
    Variable narrow(Vector({1, 2}), true), wide(Tensor::Of<double>({2}, {3, 4}), true);
    Variable out = trainer_.Call(context, "owner0", "wide_mul", {narrow, wide})[0];
    ASSERT_TRUE(trainer_.Backward(context, {Sum(out)}, InMode(mode)).ok());
    EXPECT_EQ(GradientAt(trainer_, context, narrow.key()), (Floats{3, 4}));
    Tensor gradient = context->Gradient(wide.key())->gradient;
    ASSERT_EQ(gradient.dtype(), DType::kF64);
    EXPECT_EQ(gradient.data<double>()[0], 1);
    EXPECT_EQ(gradient.data<double>()[1], 2);
  }
}

TEST_P(DistAutogradTest, DAG_24_TwoFetchesOfOneValueAddUp) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a = trainer_.Call(context, "owner0", "fetch", {})[0];
  Variable b = trainer_.Call(context, "owner0", "fetch", {})[0];
  ASSERT_TRUE(trainer_.Backward(context, {Sum(Add(a, Mul(b, 2)))}).ok());
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{3, 3}));
  EXPECT_EQ((*owner0_.autograd->Find(context->id()))->Gradient(KeyOf(owner0_))->version.oldest(),
            1u)
      << "the oldest version that was read";
}

TEST_P(DistAutogradTest, DAG_25_EveryWorkerServesAllOthersAtOnce) {
  for (TestWorker* server : Workers()) {
    std::vector<TestWorker*> trainers;
    std::vector<ContextPtr> contexts;
    std::vector<Future<Unit>> passes;
    for (TestWorker* trainer : Workers()) {
      if (trainer == server) continue;
      trainers.push_back(trainer);
      contexts.push_back(trainer->autograd->NewContext());
      Variable w = trainer->Call(contexts.back(), server->name(), "fetch", {})[0];
      Variable loss = Sum(Mul(w, static_cast<double>(trainers.size())));
      passes.push_back(trainer->autograd->Backward(contexts.back(), {loss}, {}));
    }
    network_.RunAll();
    for (size_t i = 0; i < trainers.size(); ++i) {
      ASSERT_TRUE(passes[i].IsReady() && passes[i].Wait().ok());
      const float expected = static_cast<float>(i) + 1;
      EXPECT_EQ(GradientAt(*server, contexts[i], KeyOf(*server)), (Floats{expected, expected}));
      trainers[i]->autograd->Release(contexts[i]->id());
    }
    network_.RunAll();
    ExpectNoContexts();
  }
}

TEST_P(DistAutogradTest, DAG_26_ContextsNeverMix) {
  ContextPtr one = trainer_.autograd->NewContext(), two = owner1_.autograd->NewContext();
  Variable a = trainer_.Call(one, "owner0", "fetch", {})[0];
  Variable b = owner1_.Call(two, "owner0", "fetch", {})[0];
  auto first = trainer_.autograd->Backward(one, {Sum(a)}, {});
  auto second = owner1_.autograd->Backward(two, {Sum(Mul(b, 5))}, {});
  network_.RunAll();
  ASSERT_TRUE(first.IsReady() && first.Wait().ok());
  ASSERT_TRUE(second.IsReady() && second.Wait().ok());
  EXPECT_EQ(GradientAt(owner0_, one, KeyOf(owner0_)), (Floats{1, 1}));
  EXPECT_EQ(GradientAt(owner0_, two, KeyOf(owner0_)), (Floats{5, 5}));
}

TEST_P(DistAutogradTest, DAG_27_LocalAndDistributedBackwardDoNotSeeEachOther) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Collected before, after;
  ASSERT_TRUE(Backward({Sum(Mul(x, 7))}, before).ok());
  ASSERT_TRUE(
      trainer_.Backward(context, {Sum(trainer_.Call(context, "owner0", "first", {x})[0])}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{2, 2}));
  EXPECT_EQ(Numbers(before.gradients[x.key()]), (Floats{7, 7}));
  ASSERT_TRUE(Backward({Sum(Mul(x, 3))}, after).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{2, 2}));
  EXPECT_EQ(Numbers(after.gradients[x.key()]), (Floats{3, 3}));
}

TEST_P(DistAutogradTest, DAG_28_DAG_29_PassesAccumulate) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = Sum(trainer_.Call(context, "owner0", "nested", {x})[0]);
  BackwardOptions options;
  options.retain_graph = true;
  const int passes = GetParam() == 1 ? 1000 : 10;
  for (int i = 0; i < passes; ++i) ASSERT_TRUE(trainer_.Backward(context, {out}, options).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{8.f * passes, 60.f * passes}));
  EXPECT_EQ(GradientAt(owner1_, context, KeyOf(owner1_)), (Floats{2.f * passes, 50.f * passes}));
}

TEST_P(DistAutogradTest, DAG_31_WithoutSavedValuesASecondPassWorks) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "add", {x, x})[0];
  Variable loss = trainer_.Call(context, "owner0", "sum", {out})[0];
  ASSERT_TRUE(trainer_.Backward(context, {loss}).ok());
  ASSERT_TRUE(trainer_.Backward(context, {loss}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{4, 4}));
}

TEST_P(DistAutogradTest, DAG_32_WithoutAnyCall) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  ASSERT_TRUE(trainer_.Backward(context, {Sum(Mul(x, x))}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{2, 10}));
}

TEST_P(DistAutogradTest, DAG_34_RootsOfOneElementMayHaveAnyRank) {
  for (const std::vector<int64_t>& extents : {std::vector<int64_t>{}, {1}, {1, 1}, {1, 1, 1, 1}}) {
    ContextPtr context = trainer_.autograd->NewContext();
    Variable x(Vector({1, 5}), true);
    Variable loss = Reshape(Sum(trainer_.Call(context, "owner0", "first", {x})[0]), extents);
    ASSERT_TRUE(trainer_.Backward(context, {loss}).ok());
    EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{2, 2}));
  }
}

TEST_P(DistAutogradTest, DAG_53_GradientsThatCameInOneTensorStayApart) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a(Vector({1, 2}), true), b(Vector({3, 4}), true);
  Tensor given = Vector({1, 1});
  ASSERT_TRUE(trainer_.BackwardFrom(context, {Add(a, b)}, {given}).ok());
  Tensor first = context->Gradient(a.key())->gradient;
  ASSERT_TRUE(trainer_.BackwardFrom(context, {Mul(a, 10)}, {given}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, a.key()), (Floats{11, 11}));
  EXPECT_EQ(GradientAt(trainer_, context, b.key()), (Floats{1, 1}));
  EXPECT_EQ(Numbers(first), (Floats{1, 1})) << "as it was read";
  EXPECT_EQ(Numbers(given), (Floats{1, 1}));
}

TEST_P(DistAutogradTest, GradientsFromOutsideTakeThePlaceOfOne) {
  for (BackwardMode mode : {BackwardMode::kExact, BackwardMode::kFast}) {
    ContextPtr context = trainer_.autograd->NewContext();
    Variable x(Vector({1, 5}), true);
    Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
    Variable y = trainer_.Call(context, "owner1", "times_weight", {x})[0];
    absl::Status status = trainer_.BackwardFrom(
        context, {w, y, y}, {Vector({10, 20}), Vector({1, 2}), Vector({1, 1})}, InMode(mode));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{10, 20}));
    EXPECT_EQ(GradientAt(owner1_, context, KeyOf(owner1_)), (Floats{2, 15}));
    EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{4, 9}));
  }
}

TEST_P(DistAutogradTest, GradientsFromOutsideMustFitTheirOutputs) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  const auto code = [&](const Variables& outputs, const std::vector<Tensor>& gradients) {
    return trainer_.BackwardFrom(context, outputs, gradients).code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code({}, {}), invalid);
  EXPECT_EQ(code({w}, {}), invalid);
  EXPECT_EQ(code({w}, {Tensor()}), invalid);
  EXPECT_EQ(code({w}, {Vector({1, 2, 3})}), invalid);
  EXPECT_EQ(code({w}, {Tensor::Of<double>({2}, {1, 2})}), invalid);
  EXPECT_EQ(code({w.Detach()}, {Vector({1, 2})}), invalid);
  EXPECT_EQ(code({w}, {Vector({1, 2})}), absl::StatusCode::kOk);
}

INSTANTIATE_TEST_SUITE_P(Orders, DistAutogradTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace psd::dist_autograd
