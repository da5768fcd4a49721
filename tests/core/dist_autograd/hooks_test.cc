// Hooks on variables in distributed passes.

#include <vector>

#include "core/autograd/functions/functions.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/dist_autograd_fixture.h"

namespace psd::dist_autograd {
namespace {

GradientHook Note(std::vector<Floats>& seen, double factor) {
  return [&seen, factor](const Tensor& gradient) -> absl::StatusOr<Tensor> {
    seen.push_back(Numbers(gradient));
    return Mul(Variable(gradient), factor).tensor();
  };
}

TEST_P(DistAutogradTest, DAG_51_AHookSeesTheSumOfAllRemoteUsesOncePerPass) {
  for (BackwardMode mode : {BackwardMode::kExact, BackwardMode::kFast}) {
    ContextPtr context = trainer_.autograd->NewContext();
    Variable x(Vector({1, 5}), true);
    std::vector<Floats> seen;
    ASSERT_TRUE(x.AddGradientHook(Note(seen, 2)).ok());
    Variable a = trainer_.Call(context, "owner0", "first", {x, x})[0];
    Variable b = trainer_.Call(context, "owner1", "times_weight", {x})[0];
    Variable loss = Sum(Add(Add(a, b), Mul(x, 10)));
    BackwardOptions options = InMode(mode);
    options.retain_graph = true;
    ASSERT_TRUE(trainer_.Backward(context, {loss}, options).ok());
    EXPECT_EQ(seen, (std::vector<Floats>{{14, 15}}));
    EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{28, 30}));
    ASSERT_TRUE(trainer_.Backward(context, {loss}, options).ok());
    EXPECT_EQ(seen.size(), 2u);
    EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{56, 60}));
  }
}

TEST_P(DistAutogradTest, DAG_51_AHookOnAReceivedTensorChangesWhatItsSenderGets) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable w = trainer_.Call(context, "owner0", "fetch", {})[0];
  std::vector<Floats> seen;
  ASSERT_TRUE(w.AddGradientHook(Note(seen, 0.5)).ok());
  ASSERT_TRUE(trainer_.Backward(context, {Sum(Mul(w, w))}).ok());
  EXPECT_EQ(seen, (std::vector<Floats>{{4, 6}}));
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{2, 3}));
}

TEST_P(DistAutogradTest, DAG_52_AccumulatedHooksRunOncePerPassOnTheLeafsWorker) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable weight = WeightOf(owner0_);
  int calls = 0;
  for (int times : {1, 2}) {
    ASSERT_TRUE(weight
                    .AddAccumulatedHook([&calls, times](const Tensor& gradient) {
                      EXPECT_EQ(Numbers(gradient), (Floats{6, 6}));
                      calls += times;
                      return absl::OkStatus();
                    })
                    .ok());
  }
  owner0_.functions["twice"] = [weight](TestWorker&, const ContextPtr&, const Variables&) {
    return Variables{Add(weight, weight)};
  };
  Variable loss = Sum(Mul(trainer_.Call(context, "owner0", "twice", {})[0], 3));
  ASSERT_TRUE(trainer_.Backward(context, {loss}).ok());
  EXPECT_EQ(calls, 3);
  ASSERT_TRUE(trainer_
                  .Backward(context, {trainer_.Call(context, "owner1", "sum",
                                                    {Mul(Variable(Vector({1}), true), 1)})[0]})
                  .ok());
  EXPECT_EQ(calls, 3) << "no gradient came to it";
}

INSTANTIATE_TEST_SUITE_P(Orders, DistAutogradTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace psd::dist_autograd
