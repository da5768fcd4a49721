#include "core/program/program.h"
#include "core/program/checked_program.h"

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/program/run_program.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace psd::program {
namespace {

using testing::HasSubstr;

const OperatorRegistry& Operators() {
  static const auto* registry =
      new std::shared_ptr<const OperatorRegistry>(OperatorRegistry::Builtin());
  return **registry;
}

bool Never() {
  return false;
}

// sum((a · b) ∘ (a · b))
Program SquareOfProduct() {
  ProgramBuilder builder;
  auto a = builder.Input();
  auto b = builder.Input();
  auto product = builder.Call("matmul", {a, b});
  auto square = builder.Call("mul", {product, product});
  return *builder.Build({builder.Call("sum", {square})});
}

absl::Status Check(const Program& program, const ProgramLimits& limits) {
  return CheckedProgram::Create(program, Operators(), limits).status();
}

absl::StatusOr<std::vector<Variable>> RunIt(const Program& program, std::vector<Variable> inputs,
                                            ProgramLimits limits = {}) {
  PSD_ASSIGN_OR_RETURN(const auto checked, CheckedProgram::Create(program, Operators(), {}));
  return RunProgram(checked, limits, inputs, Never);
}

TEST(Program, RunsAndKeepsHistory) {
  Variable a(Tensor::Of<float>({1, 2}, {1, 2}), /*requires_grad=*/true);
  Variable b(Tensor::Of<float>({2, 1}, {3, 4}));
  ASSERT_TRUE(Check(SquareOfProduct(), {}).ok());
  auto results = RunIt(SquareOfProduct(), {a, b});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].tensor().data<float>()[0], 121);
  EXPECT_TRUE((*results)[0].requires_grad());
  NoGradGuard no_grad;
  EXPECT_FALSE((*RunIt(SquareOfProduct(), {a, b}))[0].requires_grad());
}

TEST(Program, OutputsMayRepeatAndMayBeArguments) {
  ProgramBuilder builder;
  auto a = builder.Input();
  auto twice = builder.Call("add", {a, a});
  Program program = *builder.Build({a, twice, twice});
  auto results = RunIt(program, {Variable(Tensor::Of<float>({}, {2}))});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].tensor().data<float>()[0], 2);
  EXPECT_EQ((*results)[2].tensor().data<float>()[0], 4);
}

TEST(Program, MistakesNameTheInstruction) {
  Program program = SquareOfProduct();
  program.instructions[1].inputs = {2, 3};
  absl::Status status = Check(program, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("instruction 1 (mul)"));
  program = SquareOfProduct();
  program.instructions[0].op = "matmull";
  status = Check(program, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("matmul"));
  program = SquareOfProduct();
  program.outputs = {5};
  EXPECT_EQ(Check(program, {}).code(), absl::StatusCode::kInvalidArgument);
  program.outputs = {-1};
  EXPECT_EQ(Check(program, {}).code(), absl::StatusCode::kInvalidArgument);
  auto results = RunIt(SquareOfProduct(), {Variable(Tensor::Of<float>({2}, {1, 2})),
                                           Variable(Tensor::Of<float>({3, 1}, {1, 2, 3}))});
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(results.status().message()), HasSubstr("instruction 0 (matmul)"));
  EXPECT_EQ(RunIt(SquareOfProduct(), {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Program, LimitsOfSize) {
  ProgramLimits limits;
  limits.max_instructions = 2;
  EXPECT_EQ(Check(SquareOfProduct(), limits).code(), absl::StatusCode::kResourceExhausted);
  limits = {};
  limits.max_inputs = 1;
  EXPECT_EQ(Check(SquareOfProduct(), limits).code(), absl::StatusCode::kResourceExhausted);
  limits = {};
  limits.max_outputs = 0;
  EXPECT_EQ(Check(SquareOfProduct(), limits).code(), absl::StatusCode::kResourceExhausted);
}

TEST(Program, AResultThatIsTooLargeIsNeverMade) {
  ProgramBuilder builder;
  Attributes attributes;
  attributes["shape"] = std::vector<int64_t>{int64_t{1} << 40};
  attributes["value"] = 1.0;
  Program program = *builder.Build({builder.Call("full", {}, attributes)});
  EXPECT_EQ(RunIt(program, {}).status().code(), absl::StatusCode::kResourceExhausted);
}

// Ten additions, one after another, never keep more than two results alive.
TEST(Program, ResultsAreDroppedAfterTheirLastUse) {
  ProgramBuilder builder;
  auto x = builder.Input();
  for (int i = 0; i < 10; ++i) x = builder.Call("add", {x, x});
  Program program = *builder.Build({x});
  ProgramLimits limits;
  limits.max_live_bytes = 2 * 4 * 8;
  Variable constant(Tensor::Of<float>({8}, {1, 1, 1, 1, 1, 1, 1, 1}));
  auto results = RunIt(program, {constant}, limits);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0].tensor().data<float>()[0], 1024);
  // When a history is recorded, nothing can be dropped.
  EXPECT_EQ(RunIt(program, {Variable(constant.tensor(), true)}, limits).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(Program, CancelIsSeenBetweenInstructions) {
  int asked = 0;
  Variable one(*Tensor::Zeros({128, 128}, DType::kF32));
  auto checked = CheckedProgram::Create(SquareOfProduct(), Operators(), {});
  ASSERT_TRUE(checked.ok());
  auto results =
      RunProgram(*checked, {}, std::vector<Variable>{one, one}, [&] { return ++asked == 2; });
  EXPECT_EQ(results.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 2);
}

TEST(Program, SmallInstructionsAreManyBeforeItAsksAgain) {
  ProgramBuilder builder;
  auto x = builder.Input();
  for (int i = 0; i < 1000; ++i) x = builder.Call("neg", {x});
  auto checked = CheckedProgram::Create(*builder.Build({x}), Operators(), {});
  ASSERT_TRUE(checked.ok());
  int asked = 0;
  const Variable one(Tensor::Of<float>({1}, {1}));
  ASSERT_TRUE(RunProgram(*checked, {}, {&one, 1}, [&] { return ++asked < 0; }).ok());
  EXPECT_GE(asked, 10);
  EXPECT_LE(asked, 100);
}

TEST(Program, WhatARunFoundIsUsedForTheSameShapesOnly) {
  const auto checked = CheckedProgram::Create(SquareOfProduct(), Operators(), {});
  ASSERT_TRUE(checked.ok());
  const auto run = [&](Shape a, Shape b, DType dtype, int64_t max_result_bytes) {
    ProgramLimits limits;
    limits.max_result_bytes = max_result_bytes;
    const std::vector<Variable> inputs = {*Tensor::Zeros(a, dtype), *Tensor::Zeros(b, dtype)};
    return RunProgram(*checked, limits, inputs, Never).status().code();
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run({2, 3}, {3, 2}, DType::kF32, 16), absl::StatusCode::kOk);
    EXPECT_EQ(run({2, 3}, {3, 2}, DType::kF32, 15), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(run({2, 3}, {3, 2}, DType::kF64, 16), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(run({2, 3}, {3, 4}, DType::kF32, 16), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(run({2, 3}, {2, 3}, DType::kF32, 16), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(run({3, 2}, {2, 3}, DType::kF32, 36), absl::StatusCode::kOk);
  }
}

TEST(ProgramBuilder, TellsMistakesAtTheEnd) {
  ProgramBuilder late;
  auto a = late.Input();
  late.Call("neg", {a});
  late.Input();
  EXPECT_EQ(late.Build({}).status().code(), absl::StatusCode::kInvalidArgument);
  ProgramBuilder foreign;
  foreign.Call("neg", {7});
  EXPECT_EQ(foreign.Build({}).status().code(), absl::StatusCode::kInvalidArgument);
  ProgramBuilder output;
  EXPECT_EQ(output.Build({0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Fingerprint, EqualProgramsAgreeAndEveryDifferenceShows) {
  const Program base = SquareOfProduct();
  EXPECT_EQ(FingerprintOf(base), FingerprintOf(SquareOfProduct()));
  EXPECT_EQ(FingerprintOf(base).ToString(), "057bbcfa92750ba63474a5cf5100e626");
  std::vector<Program> others(6, base);
  others[0].num_inputs = 3;
  others[1].instructions[0].op = "add";
  others[2].instructions[1].inputs[0] = 1;
  others[3].instructions[2].attributes["axis"] = int64_t{0};
  others[4].instructions[2].attributes["axis"] = 0.0;
  others[5].outputs.push_back(0);
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(FingerprintOf(base) == FingerprintOf(others[i])) << i;
  }
  EXPECT_FALSE(FingerprintOf(others[3]) == FingerprintOf(others[4]));
}

}  // namespace
}  // namespace psd::program
