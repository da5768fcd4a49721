#include "core/autograd/operators.h"

#include <string>
#include <vector>

#include "core/base/status.h"
#include "gtest/gtest.h"
#include "tests/core/autograd/legal_calls.h"
#include "tests/core/tensor/compare.h"

namespace psd {
namespace {

class OperatorsTest : public ::testing::Test {
 protected:
  // Checks that the call fails with an error that contains all of `parts`.
  void ExpectInvalid(absl::string_view op, const std::vector<Variable>& inputs,
                     const Attributes& attributes, const std::vector<std::string>& parts) {
    absl::Status status = registry_->Run(op, inputs, attributes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << op << ": " << status;
    for (const std::string& part : parts)
      EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }

  absl::StatusOr<int64_t> Bytes(const std::string& op, const std::vector<Variable>& inputs,
                                const Attributes& attributes) {
    PSD_ASSIGN_OR_RETURN(const OperatorSpec* spec, registry_->Find(op));
    PSD_RETURN_IF_ERROR(CheckCall(*spec, inputs.size(), attributes));
    std::vector<const Variable*> pointers;
    for (const Variable& input : inputs) pointers.push_back(&input);
    return OutputBytes(*spec, pointers, attributes);
  }
  const std::shared_ptr<const OperatorRegistry> registry_ = OperatorRegistry::Builtin();
  const Variable matrix_{Tensor::Of<float>(Shape{2, 3}, {1, 2, 3, 4, 5, 6})};
};

TEST_F(OperatorsTest, ResultsHaveTheShapeAndSizeForetold) {
  std::vector<std::string> untried = registry_->Names();
  for (const testing::LegalCall& call : testing::LegalCalls()) {
    Variable result = registry_->Run(call.op, call.inputs, call.attributes);
    ASSERT_TRUE(result.ok()) << call.op << ": " << result.status();
    std::vector<Shape> shapes;
    for (const Variable& input : call.inputs) shapes.push_back(input.shape());
    absl::StatusOr<Shape> shape = registry_->OutputShape(call.op, shapes, call.attributes);
    ASSERT_TRUE(shape.ok()) << shape.status();
    EXPECT_EQ(*shape, result.shape()) << call.op;
    absl::StatusOr<int64_t> bytes = Bytes(call.op, call.inputs, call.attributes);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(*bytes, static_cast<int64_t>(result.tensor().NumBytes())) << call.op;
    for (std::string& name : untried)
      if (name == call.op) name.clear();
  }
  for (const std::string& name : untried) EXPECT_EQ(name, "") << "has no legal call";
}

TEST_F(OperatorsTest, UnknownNames) {
  ExpectInvalid("sigmiod", {matrix_}, {}, {"'sigmiod'", "'sigmoid'"});
  ExpectInvalid("", {}, {}, {"unknown"});
  ExpectInvalid("mul_scalar", {matrix_}, {{"vlaue", 1.0}}, {"mul_scalar", "'vlaue'", "'value'"});
  ExpectInvalid("relu", {matrix_}, {{"slope", 1.0}}, {"relu", "'slope'"});
}

TEST_F(OperatorsTest, WrongArity) {
  ExpectInvalid("relu", {}, {}, {"'relu'", "1", "0"});
  ExpectInvalid("add", {matrix_, matrix_, matrix_}, {}, {"'add'", "2", "3"});
  ExpectInvalid("linear", {matrix_}, {}, {"2 to 3"});
  ExpectInvalid("concat", {}, {{"axis", int64_t{0}}}, {"at least 1"});
  ExpectInvalid("zeros", {matrix_}, {{"shape", std::vector<int64_t>{1}}}, {"'zeros'"});
}

TEST_F(OperatorsTest, WrongAttributes) {
  ExpectInvalid("mul_scalar", {matrix_}, {}, {"'mul_scalar'", "'value'"});
  ExpectInvalid("mul_scalar", {matrix_}, {{"value", std::vector<int64_t>{1}}}, {"a number"});
  ExpectInvalid("sum", {matrix_}, {{"axis", 1.0}}, {"an integer"});
  ExpectInvalid("reshape", {matrix_}, {{"shape", int64_t{6}}}, {"a list of integers"});
  ExpectInvalid("zeros", {}, {{"shape", std::vector<int64_t>{2}}, {"dtype", int64_t{99}}}, {"99"});
  ExpectInvalid("cast", {matrix_}, {{"dtype", int64_t{-1}}}, {"-1"});
}

TEST_F(OperatorsTest, HostileShapesAreRefusedWithoutRunning) {
  const int64_t huge = int64_t{1} << 40;
  const Attributes creation = {{"shape", std::vector<int64_t>{huge, huge}}};
  EXPECT_FALSE(registry_->OutputShape("zeros", {}, creation).ok());
  EXPECT_FALSE(registry_->Run("zeros", {}, creation).ok());
  EXPECT_FALSE(registry_->OutputShape("zeros", {}, {{"shape", std::vector<int64_t>{-1}}}).ok());
  const Attributes large = {{"shape", std::vector<int64_t>{huge}}};
  EXPECT_EQ(*Bytes("zeros", {}, large), huge * 4);
  const std::vector<Shape> column_and_row = {Shape{huge, 1}, Shape{1, huge}};
  EXPECT_FALSE(registry_->OutputShape("add", column_and_row, {}).ok());
  EXPECT_FALSE(registry_->OutputShape("matmul", column_and_row, {}).ok());
  for (int64_t axis : {int64_t{5}, INT64_MIN, INT64_MAX}) {
    EXPECT_FALSE(registry_->OutputShape("sum", {Shape{2, 3}}, {{"axis", axis}}).ok());
    ExpectInvalid("sum", {matrix_}, {{"axis", axis}}, {});
    ExpectInvalid("concat", {matrix_}, {{"axis", axis}}, {});
    ExpectInvalid("slice", {matrix_}, {{"axis", int64_t{0}}, {"begin", axis}, {"end", axis}}, {});
  }
  EXPECT_FALSE(
      registry_->OutputShape("reshape", {Shape{2, 3}}, {{"shape", std::vector<int64_t>{-1, -1}}})
          .ok());
  EXPECT_FALSE(
      registry_->OutputShape("reshape", {Shape{2, 3}}, {{"shape", std::vector<int64_t>{4, -1}}})
          .ok());
}

TEST_F(OperatorsTest, ShapesThatDoNotFit) {
  EXPECT_FALSE(registry_->OutputShape("add", {Shape{2}, Shape{3}}, {}).ok());
  EXPECT_FALSE(registry_->OutputShape("matmul", {Shape{2, 3}, Shape{2, 3}}, {}).ok());
  EXPECT_FALSE(registry_->OutputShape("linear", {Shape{2, 3}, Shape{2}}, {}).ok());
  EXPECT_FALSE(
      registry_->OutputShape("broadcast_to", {Shape{2}}, {{"shape", std::vector<int64_t>{3}}})
          .ok());
  EXPECT_FALSE(Bytes("relu", {Variable()}, {}).ok());
}

TEST_F(OperatorsTest, RandomNumbersFollowTheSeed) {
  Attributes attributes = {
      {"shape", std::vector<int64_t>{10}}, {"low", 0.0}, {"high", 1.0}, {"seed", int64_t{1}}};
  Variable first = registry_->Run("uniform", {}, attributes);
  EXPECT_TRUE(ops::Equal(first.tensor(), registry_->Run("uniform", {}, attributes).tensor()));
  attributes["seed"] = int64_t{2};
  EXPECT_FALSE(ops::Equal(first.tensor(), registry_->Run("uniform", {}, attributes).tensor()));
}

}  // namespace
}  // namespace psd
