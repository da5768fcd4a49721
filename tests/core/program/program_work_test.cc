#include "core/program/program_work.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/autograd/operators.h"
#include "core/tensor/tensor.h"

namespace psd::program {
namespace {

class ProgramWorkTest : public ::testing::Test {
 protected:
  Variable Of(const Shape& shape) { return Variable(*Tensor::Zeros(shape, DType::kF32)); }
  CheckedProgram Check(ProgramBuilder& builder, ProgramBuilder::Ref result) {
    return *CheckedProgram::Create(*builder.Build({result}), *operators_, {});
  }

  const std::shared_ptr<const OperatorRegistry> operators_ = OperatorRegistry::Builtin();
};

TEST_F(ProgramWorkTest, CountsWhatIsReadAndWritten) {
  ProgramBuilder builder;
  const ProgramBuilder::Ref a = builder.Input(), b = builder.Input();
  const CheckedProgram program =
      Check(builder, builder.Call("add", {builder.Call("mul", {a, b}), b}));
  const std::vector<Variable> inputs = {Of({10}), Of({10})};
  EXPECT_TRUE(WorkIsAtMost(60, program, inputs));
  EXPECT_FALSE(WorkIsAtMost(59, program, inputs));
}

TEST_F(ProgramWorkTest, SeesWhatGrowsOnTheWay) {
  ProgramBuilder builder;
  const ProgramBuilder::Ref column = builder.Input(), row = builder.Input();
  ProgramBuilder::Ref x = builder.Call("matmul", {column, row});
  const CheckedProgram program = Check(builder, builder.Call("sum", {x}));
  const std::vector<Variable> inputs = {Of({2000, 1}), Of({1, 2000})};
  EXPECT_FALSE(WorkIsAtMost(4'000'000, program, inputs));
  EXPECT_TRUE(WorkIsAtMost(9'000'000, program, inputs));
}

TEST_F(ProgramWorkTest, CountsProductsByTheirMultiplications) {
  for (const std::string op : {"matmul", "linear"}) {
    ProgramBuilder builder;
    const ProgramBuilder::Ref a = builder.Input(), b = builder.Input();
    const CheckedProgram program = Check(builder, builder.Call(op, {a, b}));
    const std::vector<Variable> inputs = {Of({32, 32}), Of({32, 32})};
    const int64_t work = 32 * 32 * 32 + 2 * 32 * 32;
    EXPECT_TRUE(WorkIsAtMost(work, program, inputs)) << op;
    EXPECT_FALSE(WorkIsAtMost(work - 1, program, inputs)) << op;
  }
}

TEST_F(ProgramWorkTest, WhatCannotRunIsNotLight) {
  ProgramBuilder builder;
  const ProgramBuilder::Ref a = builder.Input(), b = builder.Input();
  const CheckedProgram program = Check(builder, builder.Call("matmul", {a, b}));
  EXPECT_FALSE(WorkIsAtMost(1'000'000, program, {Of({2, 3}), Of({2, 3})}));
  EXPECT_FALSE(WorkIsAtMost(1'000'000, program, {Of({2, 3})}));
  EXPECT_FALSE(WorkIsAtMost(1'000'000, program,
                            {Of({2, 3}), Variable::Invalid(absl::InternalError("no tensor"))}));
}

}  // namespace
}  // namespace psd::program
