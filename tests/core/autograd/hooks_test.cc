#include "core/autograd/hooks.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/functions/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/autograd/gradient_check.h"
#include "tests/core/autograd/scalars.h"

namespace psd {
namespace {

using ::psd::testing::FakeSink;
using ::psd::testing::Leaf;
using ::psd::testing::Value;
using ::testing::HasSubstr;

// Returns a hook that multiplies gradients by `factor` and adds them to `seen`.
GradientHook Times(double factor, std::vector<double>& seen) {
  return [factor, &seen](const Tensor& gradient) -> absl::StatusOr<Tensor> {
    seen.push_back(Value(gradient));
    return Tensor::Scalar(Value(gradient) * factor);
  };
}

TEST(HooksTest, AHookOnALeafSeesTheSumOncePerPass) {
  Variable x = Leaf(3);
  std::vector<double> seen;
  ASSERT_TRUE(x.AddGradientHook(Times(10, seen)).ok());
  FakeSink sink;
  ASSERT_TRUE(Backward({x * x + x * 4.0}, sink).ok());
  EXPECT_EQ(seen, std::vector<double>{10});
  EXPECT_EQ(Value(sink.Of(x)), 100);
}

TEST(HooksTest, AHookOnAResultChangesWhatFlowsOn) {
  Variable x = Leaf(3);
  Variable y = x * 2.0;
  std::vector<double> seen;
  ASSERT_TRUE(y.AddGradientHook(Times(5, seen)).ok());
  FakeSink sink;
  ASSERT_TRUE(Backward({y * y}, sink).ok());
  EXPECT_EQ(seen, std::vector<double>{12});
  EXPECT_EQ(Value(sink.Of(x)), 120);
}

TEST(HooksTest, HooksRunInTheirOrderEachOnWhatTheOneBeforeGave) {
  Variable x = Leaf(1);
  std::vector<double> seen;
  ASSERT_TRUE(x.AddGradientHook(Times(2, seen)).ok());
  ASSERT_TRUE(x.AddGradientHook(Times(3, seen)).ok());
  FakeSink sink;
  ASSERT_TRUE(Backward({x * 1.0}, sink).ok());
  EXPECT_EQ(seen, (std::vector<double>{1, 2}));
  EXPECT_EQ(Value(sink.Of(x)), 6);
}

TEST(HooksTest, AccumulatedHooksSeeWhatTheSinkGot) {
  Variable x = Leaf(3);
  FakeSink sink;
  std::vector<double> before, after;
  ASSERT_TRUE(x.AddGradientHook(Times(10, before)).ok());
  ASSERT_TRUE(x.AddAccumulatedHook([&](const Tensor& gradient) {
                 EXPECT_EQ(Value(sink.Of(x)), Value(gradient));
                 after.push_back(Value(gradient));
                 return absl::OkStatus();
               }).ok());
  ASSERT_TRUE(Backward({x * x}, sink).ok());
  EXPECT_EQ(after, std::vector<double>{60});
}

TEST(HooksTest, WithoutAGradientNoHookIsCalled) {
  Variable x = Leaf(3), y = Leaf(4);
  std::vector<double> seen;
  ASSERT_TRUE(y.AddGradientHook(Times(1, seen)).ok());
  FakeSink sink;
  ASSERT_TRUE(Backward({x * 2.0}, sink).ok());
  EXPECT_TRUE(seen.empty());
}

TEST(HooksTest, AnErrorOrAnotherShapeEndsThePass) {
  for (bool fails : {true, false}) {
    Variable x = Leaf(3);
    ASSERT_TRUE(x.AddGradientHook([fails](const Tensor&) -> absl::StatusOr<Tensor> {
                   if (fails) return absl::DataLossError("not finite");
                   return Tensor::Of<double>({2}, {1, 2});
                 }).ok());
    FakeSink sink;
    absl::Status status = Backward({x * 2.0}, sink);
    EXPECT_EQ(status.code(),
              fails ? absl::StatusCode::kDataLoss : absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("gradient hook"));
    EXPECT_EQ(sink.calls(), 0);
  }
}

TEST(HooksTest, AnExceptionEndsThePassWithItsText) {
  for (bool before : {true, false}) {
    Variable x = Leaf(3);
    if (before) {
      ASSERT_TRUE(x.AddGradientHook([](const Tensor&) -> absl::StatusOr<Tensor> {
                     throw std::runtime_error("no gradient today");
                   }).ok());
    } else {
      ASSERT_TRUE(x.AddAccumulatedHook([](const Tensor&) -> absl::Status {
                     throw std::runtime_error("no gradient today");
                   }).ok());
    }
    FakeSink sink;
    const absl::Status status = Backward({x * 2.0}, sink);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr(before ? "gradient hook" : "accumulated"));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("threw std::runtime_error: no gradient today"));
  }
}

TEST(HooksTest, OnlyWhatHasGradientsTakesHooks) {
  const auto refused = absl::StatusCode::kFailedPrecondition;
  std::vector<double> seen;
  const auto nothing = [](const Tensor&) { return absl::OkStatus(); };
  Variable constant(Tensor::Scalar(1.0));
  EXPECT_EQ(constant.AddGradientHook(Times(1, seen)).code(), refused);
  EXPECT_EQ(constant.AddAccumulatedHook(nothing).code(), refused);
  EXPECT_EQ((Leaf(1) * 2.0).AddAccumulatedHook(nothing).code(), refused);
  EXPECT_EQ(Variable().AddGradientHook(Times(1, seen)).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace psd
