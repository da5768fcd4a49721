#include "core/program/program_sizes.h"

#include <vector>

#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"

namespace psd::program {
namespace {

Variable Zeros(const Shape& shape, DType dtype = DType::kF32) {
  return *Tensor::Zeros(shape, dtype);
}

TEST(ProgramSizes, FitsInputsOfTheSameShapesAndDTypesOnly) {
  const std::vector<Variable> inputs = {Zeros({2, 3}), Zeros({})};
  const ProgramSizes sizes(inputs, 0);
  EXPECT_TRUE(sizes.Fits(inputs));
  EXPECT_TRUE(sizes.Fits(std::vector<Variable>{Zeros({2, 3}), Variable(Zeros({}).tensor(), true)}));
  EXPECT_FALSE(sizes.Fits(std::vector<Variable>{Zeros({3, 2}), Zeros({})}));
  EXPECT_FALSE(sizes.Fits(std::vector<Variable>{Zeros({2, 3}), Zeros({}, DType::kF64)}));
  EXPECT_FALSE(sizes.Fits(std::vector<Variable>{Zeros({2, 3}), Variable()})) << "an invalid one";
  EXPECT_FALSE(sizes.Fits(std::vector<Variable>{Zeros({2, 3})}));
}

TEST(ProgramSizes, KeepsTheSizeOfEachInstruction) {
  ProgramSizes sizes({}, 2);
  sizes.Add({16, 1024});
  sizes.Add({8, 2048});
  EXPECT_EQ(sizes[0].result_bytes, 16);
  EXPECT_EQ(sizes[1].work, 2048);
}

}  // namespace
}  // namespace psd::program
