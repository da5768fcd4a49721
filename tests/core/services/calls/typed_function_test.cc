#include "core/services/calls/typed_function.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/rref/rref.h"
#include "core/services/calls/functions.h"
#include "core/store/value.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::services {
namespace {

using store::Value;
using ::testing::HasSubstr;

absl::StatusOr<std::string> Describe(bool yes, int64_t count, double factor,
                                     const std::string& text, const Tensor& tensor) {
  return absl::StrCat(yes ? "yes" : "no", " ", count, " ", factor, " ", text, " ",
                      tensor.ToString());
}

absl::Status Refuse(const Value&) {
  return absl::OutOfRangeError("refused");
}

absl::StatusOr<store::Values> Twice(const Value& value) {
  return store::Values{value, value};
}

absl::StatusOr<std::string> Caller(const FunctionCall& call, int64_t number) {
  return absl::StrCat(call.caller().name, number);
}

struct Sum : store::Object {
  std::string TypeName() const override { return "sum"; }
  absl::StatusOr<int64_t> Add(int64_t amount) { return total += amount; }
  absl::StatusOr<int64_t> Total() const { return total; }
  int64_t total = 0;
};

class TypedFunctionTest : public ::testing::Test {
 protected:
  absl::StatusOr<store::Values> Run(const SyncFunction& function, store::Values arguments) {
    return function(call_, std::move(arguments));
  }
  static absl::Status Error(const absl::StatusOr<store::Values>& result) { return result.status(); }

  FunctionCall call_{nullptr, {"trainer0", 1}, absl::InfiniteFuture(), nullptr, nullptr};
};

TEST_F(TypedFunctionTest, ArgumentsArriveAsTheirTypes) {
  const Tensor tensor = Tensor::Of<float>({2}, {1, 2});
  const auto result = Run(Typed(Describe), {true, 3, 0.5, "text", tensor});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(*ReadValue<std::string>((*result)[0]), "yes 3 0.5 text f32[2]");
  // An int is accepted for a double.
  EXPECT_TRUE(Run(Typed(Describe), {false, 3, 2, "text", tensor}).ok());
}

TEST_F(TypedFunctionTest, RPC_16_WrongArgumentsAreNamedAndTheFunctionDoesNotRun) {
  const Tensor tensor = Tensor::Of<float>({2}, {1, 2});
  const absl::Status few = Error(Run(Typed(Describe), {true, 3}));
  EXPECT_EQ(few.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(few.message(), HasSubstr("takes 5 arguments and was given 2"));
  const absl::Status wrong = Error(Run(Typed(Describe), {true, "3", "x", "text", tensor}));
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(wrong.message(), "argument 1 is string, not an int");
  EXPECT_EQ(Error(Run(Typed(Describe), {true, 3, 1.0, "text", 5})).message(),
            "argument 4 is int, not a tensor");
}

TEST_F(TypedFunctionTest, ResultsAreNothingOneOrMany) {
  EXPECT_EQ(Error(Run(Typed(Refuse), {1})).code(), absl::StatusCode::kOutOfRange);
  const auto twice = Run(Typed(Twice), {7});
  ASSERT_TRUE(twice.ok());
  const auto both = ReadValues<int64_t, double>(*twice);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(std::get<0>(*both), 7);
  EXPECT_EQ(std::get<1>(*both), 7.0);
}

TEST_F(TypedFunctionTest, AFunctionMayLookAtItsCall) {
  const auto result = Run(Typed(Caller), {4});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(*ReadValue<std::string>((*result)[0]), "trainer04");
}

TEST_F(TypedFunctionTest, MethodsWorkOnTheirObject) {
  Sum sum;
  const auto add = TypedMethod(&Sum::Add);
  EXPECT_TRUE(add(sum, call_, {2}).ok());
  EXPECT_TRUE(add(sum, call_, {3}).ok());
  EXPECT_EQ(*ReadValue<int64_t>((*TypedMethod(&Sum::Total)(sum, call_, {}))[0]), 5);
  EXPECT_FALSE(add(sum, call_, {"x"}).ok());
  EXPECT_EQ(sum.total, 5);
}

TEST_F(TypedFunctionTest, AReferenceIsNoOtherValue) {
  EXPECT_EQ(ReadValue<rref::RRef>(Value(5)).status().message(), "is int, not a reference");
}

}  // namespace
}  // namespace psd::services
