// Pulled parameters. No graph is behind their messages, and their gradients are collected when they
// arrive.

#include <string>

#include "core/autograd/functions/functions.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/dist_autograd_fixture.h"

namespace psd::dist_autograd {
namespace {

class LeavesTest : public DistAutogradTest {
 protected:
  LeavesTest() {
    for (TestWorker* worker : Workers()) {
      worker->functions["pull"] = [this](TestWorker& self, const ContextPtr&, const Variables&) {
        return Variables{WeightOf(self), Variable::Leaf(weights_, OtherKeyOf(self), 1)};
      };
    }
  }

  static GlobalId OtherKeyOf(const TestWorker& worker) {
    return {worker.agent.self().incarnation, 1'000'001};
  }
  // Pulls the owner's weight and its other weight, which are both {2, 3}.
  Variables Pull(const ContextPtr& context, const TestWorker& owner) {
    return trainer_.Call(context, owner.name(), "pull", {});
  }
};

TEST_P(LeavesTest, GradientsOfSeveralPullsAddUp) {
  ContextPtr context = trainer_.autograd->NewContext();
  const Variables a = Pull(context, owner0_), b = Pull(context, owner0_);
  const Variables c = Pull(context, owner1_);
  absl::Status done = trainer_.Backward(context, {Sum(Mul(Mul(a[0], b[0]), c[1]))});
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{8, 18}));
  EXPECT_EQ(GradientAt(owner0_, context, OtherKeyOf(owner0_)), Floats{});
  EXPECT_EQ(GradientAt(owner1_, context, OtherKeyOf(owner1_)), (Floats{4, 9}));
  ExpectAtRest();
}

TEST_P(LeavesTest, AndThoseThatComeThroughAGraphOfTheOwner) {
  ContextPtr context = trainer_.autograd->NewContext();
  const Variables pulled = Pull(context, owner0_);
  const Variable ones(Vector({1, 1}));
  const Variable product = trainer_.Call(context, "owner0", "times_weight", {ones})[0];
  absl::Status done = trainer_.Backward(context, {Sum(Mul(pulled[0], product))});
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{4, 6}));
  ExpectAtRest();
}

TEST_P(LeavesTest, FastModeGivesZerosToThoseThatTheLossDidNotUse) {
  ContextPtr context = trainer_.autograd->NewContext();
  const Variables pulled = Pull(context, owner0_);
  absl::Status done =
      trainer_.Backward(context, {Sum(Mul(pulled[0], 5))}, InMode(BackwardMode::kFast));
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{5, 5}));
  EXPECT_EQ(GradientAt(owner0_, context, OtherKeyOf(owner0_)), (Floats{0, 0}));
}

TEST_P(LeavesTest, AWorkerPullsItsOwn) {
  ContextPtr context = trainer_.autograd->NewContext();
  const Variables pulled = Pull(context, trainer_);
  absl::Status done = trainer_.Backward(context, {Sum(Mul(pulled[0], pulled[1]))});
  ASSERT_TRUE(done.ok()) << done;
  EXPECT_EQ(GradientAt(trainer_, context, KeyOf(trainer_)), (Floats{2, 3}));
  EXPECT_EQ(GradientAt(trainer_, context, OtherKeyOf(trainer_)), (Floats{2, 3}));
}

TEST_P(LeavesTest, AFailedPassCollectsNothing) {
  owner0_.functions["fails"] = [](TestWorker&, const ContextPtr&, const Variables& v) {
    Variable out = Mul(v[0], 2);
    EXPECT_TRUE(out.AddGradientHook([](const Tensor&) -> absl::StatusOr<Tensor> {
                     return absl::DataLossError("broken");
                   })
                    .ok());
    return Variables{out};
  };
  ContextPtr context = trainer_.autograd->NewContext();
  const Variables pulled = Pull(context, owner0_);
  const Variable x(Vector({1, 5}), true);
  const Variable out = trainer_.Call(context, "owner0", "fails", {x})[0];
  absl::Status done = trainer_.Backward(context, {Sum(Mul(pulled[0], out))});
  EXPECT_FALSE(done.ok());  // in some orders the error says only that the pass has ended on owner0
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), Floats{});
  network_.RunAll();
  ExpectAtRest();
}

INSTANTIATE_TEST_SUITE_P(Orders, LeavesTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace psd::dist_autograd
