// Passes that fail: the error that the caller gets, and the state that is left.

#include <string>

#include "core/autograd/functions/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/dist_autograd/dist_autograd_fixture.h"

namespace psd::dist_autograd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class FailuresTest : public DistAutogradTest {
 protected:
  // Registers "chain" on all owners. On owner0 it calls the one on owner1, which calls the one on
  // owner2, and the result is 18 times the argument. While the chain is broken, backward fails on
  // owner2.
  void AddFailingChain() {
    const auto through = [](const std::string& next) {
      return [next](TestWorker& self, const ContextPtr& context, const Variables& v) {
        return Variables{Mul(self.Call(context, next, "chain", v)[0], 3)};
      };
    };
    owner0_.functions["chain"] = through("owner1");
    owner1_.functions["chain"] = through("owner2");
    owner2_.functions["chain"] = [this](TestWorker&, const ContextPtr&, const Variables& v) {
      Variable out = Mul(v[0], 2);
      EXPECT_TRUE(out.AddGradientHook([this](const Tensor& gradient) -> absl::StatusOr<Tensor> {
                       if (broken_) return absl::DataLossError("the chain is broken");
                       return gradient;
                     })
                      .ok());
      return Variables{out};
    };
  }

  bool broken_ = true;
};

TEST_P(FailuresTest, DAG_30_WithoutRetainASecondPassFailsAndChangesNothing) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true), local(Vector({1, 1}), true);
  Variable out = Sum(Add(trainer_.Call(context, "owner0", "mul", {x, x})[0], local));
  ASSERT_TRUE(trainer_.Backward(context, {out}).ok());
  absl::Status again = trainer_.Backward(context, {out});
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition) << again;
  EXPECT_THAT(std::string(again.message()), HasSubstr("error on owner0"));
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{2, 10}));
  EXPECT_EQ(GradientAt(trainer_, context, local.key()), (Floats{1, 1}))
      << "its second gradient came before the failure";
  network_.RunAll();
  ExpectAtRest();
}

TEST_P(FailuresTest, ATensorOfAnotherContextIsAnErrorThatNamesBoth) {
  const ContextPtr a = trainer_.autograd->NewContext(), b = trainer_.autograd->NewContext();
  const Variable from_a = trainer_.Call(a, "owner0", "fetch", {})[0];
  const Variable from_b = trainer_.Call(b, "owner0", "fetch", {})[0];
  // The walk of the graph finds the mix, whether it meets all tensors of b first or none of them.
  for (const Variable& loss : {Sum(Mul(from_a, from_b)), Sum(Mul(from_b, from_a)), Sum(from_a),
                               Sum(trainer_.Call(b, "owner0", "mul", {from_a, from_b})[0])}) {
    const absl::Status mixed = trainer_.Backward(b, {loss});
    EXPECT_EQ(mixed.code(), absl::StatusCode::kInvalidArgument) << mixed;
    EXPECT_THAT(std::string(mixed.message()), HasSubstr(a->id().ToString()));
    EXPECT_THAT(std::string(mixed.message()), HasSubstr(b->id().ToString()));
    network_.RunAll();
  }
  ExpectAtRest();
}

TEST_P(FailuresTest, DAG_33_MistakesOfTheCaller) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(trainer_.Backward(context, {}).code(), invalid);
  EXPECT_EQ(trainer_.Backward(context, {Variable(Vector({1}))}).code(), invalid);
  EXPECT_EQ(trainer_.Backward(context, {Mul(x, 2)}).code(), invalid);
  BackwardOptions options;
  options.timeout = absl::ZeroDuration();
  EXPECT_EQ(trainer_.Backward(context, {Sum(Mul(x, 2))}, options).code(), invalid);
  trainer_.autograd->Release(context->id());
  EXPECT_EQ(trainer_.Backward(context, {Sum(Mul(x, 2))}).code(), absl::StatusCode::kNotFound);
}

TEST_P(FailuresTest, DAG_35_AnErrorInTheForwardLeavesTheContextUsable) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true), other(Vector({1, 2, 3}), true);
  absl::Status failed = trainer_.TryCall(context, "owner0", "mul", {x, other}).status();
  EXPECT_EQ(failed.code(), absl::StatusCode::kInvalidArgument) << failed;
  Variable out = trainer_.Call(context, "owner0", "mul", {x, x})[0];
  ASSERT_TRUE(trainer_.Backward(context, {Sum(out)}).ok());
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{2, 10}));
}

TEST_P(FailuresTest, DAG_36_AnErrorDeepInAChainNamesItsWorker) {
  AddFailingChain();
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "chain", {x})[0];
  absl::Status failed = trainer_.Backward(context, {Sum(out)});
  EXPECT_EQ(failed.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(failed.message()), StartsWith("error on owner2: "));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("the chain is broken"));
  EXPECT_EQ(context->Gradients()->size(), 0u);
  network_.RunAll();
  ExpectAtRest();
}

TEST_P(FailuresTest, DAG_37_AfterFiftyFailuresTheSameGraphRuns) {
  AddFailingChain();
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable loss = Sum(trainer_.Call(context, "owner0", "chain", {x})[0]);
  BackwardOptions options;
  options.retain_graph = true;
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(trainer_.Backward(context, {loss}, options).code(), absl::StatusCode::kDataLoss);
  }
  broken_ = false;
  absl::Status mended = trainer_.Backward(context, {loss});
  ASSERT_TRUE(mended.ok()) << mended;
  EXPECT_EQ(GradientAt(trainer_, context, x.key()), (Floats{18, 18}));
  network_.RunAll();
  ExpectAtRest();
}

TEST_P(FailuresTest, DAG_38_AnOwnerThatIsGoneIsAnErrorNotAHang) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a = trainer_.Call(context, "owner0", "fetch", {})[0];
  Variable b = trainer_.Call(context, "owner1", "fetch", {})[0];
  network_.SetFilter([](const std::string&, const std::string& to, const rpc::Request&) {
    return to == "owner1" ? absl::UnavailableError("owner1 is dead") : absl::OkStatus();
  });
  absl::Status status = trainer_.Backward(context, {Sum(Mul(a, b))});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("owner1"));
  network_.RunAll();
  ExpectAtRest();
  EXPECT_TRUE(owner0_.autograd->Find(context->id()).ok());
}

TEST_P(FailuresTest, DAG_38_AnOwnerBehindAnotherThatIsGone) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "nested", {x})[0];
  network_.SetFilter([](const std::string&, const std::string& to, const rpc::Request&) {
    return to == "owner1" ? absl::UnavailableError("owner1 is dead") : absl::OkStatus();
  });
  absl::Status status = trainer_.Backward(context, {Sum(out)});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("owner1"));
}

TEST_P(FailuresTest, DAG_39_ReleaseDuringAPass) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "nested", {x})[0];
  auto done = trainer_.autograd->Backward(context, {Sum(out)}, {});
  network_.RunOne();
  trainer_.autograd->Release(context->id());
  network_.RunAll();
  ASSERT_TRUE(done.IsReady());
  ExpectAtRest();
  ExpectNoContexts();
}

TEST_P(FailuresTest, DAG_40_AFailureReachesWhoeverWaits) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable out = trainer_.Call(context, "owner0", "nested", {x})[0];
  network_.SetFilter([](const std::string& from, const std::string&, const rpc::Request& request) {
    return from == "owner1" && request.method == "autograd.gradient" ? absl::UnavailableError("cut")
                                                                     : absl::OkStatus();
  });
  EXPECT_FALSE(trainer_.Backward(context, {Sum(out)}).ok());
  network_.RunAll();
  ExpectAtRest();
  EXPECT_EQ(context->Gradients()->size(), 0u);
}

TEST_P(FailuresTest, DAG_40_AWorkerThatWaitsForAnotherIsToldOfTheFailureThere) {
  const auto through_owner2 = [](TestWorker& self, const ContextPtr& context, const Variables& v) {
    return Variables{Mul(self.Call(context, "owner2", "first", v)[0], 3)};
  };
  owner1_.functions["through"] = through_owner2;
  owner0_.functions["through"] = [&](TestWorker& self, const ContextPtr& context,
                                     const Variables& v) {
    Variables out = through_owner2(self, context, v);
    EXPECT_TRUE(out[0]
                    .AddGradientHook([](const Tensor&) -> absl::StatusOr<Tensor> {
                      return absl::DataLossError("broken");
                    })
                    .ok());
    return out;
  };
  ContextPtr context = trainer_.autograd->NewContext();
  Variable x(Vector({1, 5}), true);
  Variable a = trainer_.Call(context, "owner0", "through", {x})[0];
  Variable b = trainer_.Call(context, "owner1", "through", {x})[0];
  EXPECT_EQ(trainer_.Backward(context, {Sum(Add(a, b))}).code(), absl::StatusCode::kDataLoss);
  network_.RunAll();
  ExpectAtRest();
}

TEST_P(FailuresTest, DAG_50_TwoBackwardsAtOnceInOneContext) {
  ContextPtr context = trainer_.autograd->NewContext();
  Variable a = trainer_.Call(context, "owner0", "fetch", {})[0];
  auto first = trainer_.autograd->Backward(context, {Sum(Mul(a, 2))}, {});
  auto second = trainer_.autograd->Backward(context, {Sum(Mul(a, 3))}, {});
  ASSERT_TRUE(second.IsReady());
  EXPECT_EQ(second.Wait().status().code(), absl::StatusCode::kFailedPrecondition);
  network_.RunUntil(first);
  EXPECT_TRUE(first.Wait().ok());
  EXPECT_EQ(GradientAt(owner0_, context, KeyOf(owner0_)), (Floats{2, 2}));
}

INSTANTIATE_TEST_SUITE_P(Orders, FailuresTest, ::testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace psd::dist_autograd
