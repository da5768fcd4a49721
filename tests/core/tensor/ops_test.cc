// Tensor operators: numbers, views, empty tensors and errors. Their gradients are checked in
// tests/core/autograd/functions_test.cc.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/tensor/ops/cast.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/loss.h"
#include "core/tensor/ops/matmul.h"
#include "core/tensor/ops/random.h"
#include "core/tensor/ops/reduce.h"
#include "core/tensor/ops/shape_ops.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"
#include "tests/core/tensor/compare.h"

namespace psd::ops {
namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

Tensor F(const Shape& shape, std::initializer_list<float> values) {
  return Tensor::Of<float>(shape, values);
}
Tensor I(const Shape& shape, std::initializer_list<int64_t> values) {
  return Tensor::Of<int64_t>(shape, values);
}
Tensor Matrix() {
  return F(Shape{2, 3}, {1, 2, 3, 4, 5, 6});
}

void ExpectTensor(const absl::StatusOr<Tensor>& actual, const Tensor& expected) {
  ASSERT_TRUE(actual.ok()) << actual.status();
  EXPECT_EQ(actual->ToString(), expected.ToString());
  EXPECT_TRUE(AllClose(*actual, expected, 1e-6, 1e-7));
}

// Expects INVALID_ARGUMENT with all `parts` in the message.
void ExpectInvalid(const absl::StatusOr<Tensor>& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
  for (const std::string& part : parts)
    EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status();
}

TEST(ElementwiseOpsTest, Broadcasting) {
  ExpectTensor(Add(Matrix(), F(Shape{3}, {10, 20, 30})), F(Shape{2, 3}, {11, 22, 33, 14, 25, 36}));
  ExpectTensor(Mul(Matrix(), F(Shape{2, 1}, {2, 3})), F(Shape{2, 3}, {2, 4, 6, 12, 15, 18}));
  ExpectTensor(Sub(F(Shape{2, 1}, {1, 2}), F(Shape{3}, {1, 2, 3})),
               F(Shape{2, 3}, {0, -1, -2, 1, 0, -1}));
  ExpectTensor(Div(F(Shape{}, {6}), F(Shape{3}, {1, 2, 3})), F(Shape{3}, {6, 3, 2}));
  ExpectTensor(Add(F(Shape{0, 3}, {}), F(Shape{3}, {1, 2, 3})), F(Shape{0, 3}, {}));
}

TEST(ElementwiseOpsTest, ViewsOfEveryKind) {
  const Tensor turned = *Transpose(F(Shape{3, 2}, {1, 4, 2, 5, 3, 6}), 0, 1);
  ExpectTensor(Add(turned, Matrix()), F(Shape{2, 3}, {2, 4, 6, 8, 10, 12}));
  ExpectTensor(Mul(turned, turned), F(Shape{2, 3}, {1, 4, 9, 16, 25, 36}));
  ExpectTensor(Add(*Slice(Matrix(), 1, 1, 3), *Slice(Matrix(), 1, 0, 2)),
               F(Shape{2, 2}, {3, 5, 9, 11}));
  const Tensor repeated = *BroadcastTo(F(Shape{1}, {2}), Shape{2, 3});
  ExpectTensor(Add(repeated, repeated), F(Shape{2, 3}, {4, 4, 4, 4, 4, 4}));
  ExpectTensor(Neg(turned), F(Shape{2, 3}, {-1, -2, -3, -4, -5, -6}));
  ExpectTensor(Relu(repeated), F(Shape{2, 3}, {2, 2, 2, 2, 2, 2}));
  ExpectTensor(Add(F(Shape{2, 1, 2, 1}, {1, 2, 3, 4}), F(Shape{3, 1, 2}, {10, 20, 30, 40, 50, 60})),
               F(Shape{2, 3, 2, 2}, {11, 21, 12, 22, 31, 41, 32, 42, 51, 61, 52, 62,
                                     13, 23, 14, 24, 33, 43, 34, 44, 53, 63, 54, 64}));
}

TEST(ElementwiseOpsTest, Integers) {
  ExpectTensor(Add(I(Shape{2}, {1, 2}), I(Shape{}, {10})), I(Shape{2}, {11, 12}));
  ExpectTensor(Mul(I(Shape{2}, {3, 4}), 2), I(Shape{2}, {6, 8}));
  ExpectTensor(Neg(Tensor::Of<int32_t>(Shape{2}, {3, -4})), Tensor::Of<int32_t>(Shape{2}, {-3, 4}));
  ExpectInvalid(Div(I(Shape{1}, {1}), I(Shape{1}, {1})), {"Div", "i64[1]", "cast"});
  ExpectInvalid(Mul(I(Shape{1}, {1}), 0.5), {"0.5", "i64[1]"});
  ExpectInvalid(Add(I(Shape{1}, {1}), 0x1p63), {});
  ExpectInvalid(Add(I(Shape{1}, {1}), std::nan("")), {});
  ExpectInvalid(Exp(I(Shape{1}, {1})), {"Exp"});
}

TEST(ElementwiseOpsTest, NumbersTakeTheTensorsDType) {
  ExpectTensor(Add(Matrix(), 1), F(Shape{2, 3}, {2, 3, 4, 5, 6, 7}));
  ExpectTensor(Sub(1, F(Shape{2}, {1, 3})), F(Shape{2}, {0, -2}));
  ExpectTensor(Div(6, F(Shape{2}, {2, 0})), F(Shape{2}, {3, kInf}));
  ExpectTensor(Mul(F(Shape{0}, {}), 2), F(Shape{0}, {}));
}

TEST(ElementwiseOpsTest, NanAndInfinityPassUnaltered) {
  ExpectTensor(Add(F(Shape{3}, {kNan, kInf, -kInf}), F(Shape{3}, {1, 1, kInf})),
               F(Shape{3}, {kNan, kInf, kNan}));
  ExpectTensor(Relu(F(Shape{3}, {kNan, kInf, -kInf})), F(Shape{3}, {kNan, kInf, 0}));
}

TEST(ElementwiseOpsTest, ErrorsNameWhatWasGivenAndWhatToDo) {
  ExpectInvalid(Add(Matrix(), F(Shape{2}, {1, 2})), {"Add", "[2, 3]", "[2]"});
  ExpectInvalid(Add(Matrix(), I(Shape{3}, {1, 2, 3})), {"f32[2, 3]", "i64[3]", "cast"});
  ExpectInvalid(Mul(Matrix(), Tensor()), {"Mul", "undefined"});
  ExpectInvalid(Add(*Tensor::Zeros(Shape{2}, DType::kF16), 1), {"f16[2]", "cast"});
  ExpectInvalid(Relu(*Tensor::Zeros(Shape{2}, DType::kBF16)), {"bf16[2]"});
  ExpectInvalid(Add(Tensor::Of<bool>(Shape{1}, {true}), 1), {"bool[1]"});
  ExpectInvalid(ReluGradient(Matrix(), F(Shape{3}, {1, 2, 3})), {"f32[2, 3]", "f32[3]"});
}

TEST(ElementwiseOpsTest, AddInPlace) {
  Tensor into = Matrix();
  ASSERT_TRUE(AddInPlace(into, *Transpose(F(Shape{3, 2}, {1, 1, 2, 2, 3, 3}), 0, 1)).ok());
  ExpectTensor(into, F(Shape{2, 3}, {2, 4, 6, 5, 7, 9}));
  EXPECT_FALSE(AddInPlace(into, F(Shape{3}, {1, 2, 3})).ok());
}

TEST(ReduceOpsTest, Sums) {
  ExpectTensor(Sum(Matrix()), F(Shape{}, {21}));
  ExpectTensor(Sum(Matrix(), 0), F(Shape{3}, {5, 7, 9}));
  ExpectTensor(Sum(Matrix(), -1), F(Shape{2}, {6, 15}));
  ExpectTensor(Sum(Matrix(), 1, true), F(Shape{2, 1}, {6, 15}));
  ExpectTensor(Sum(*Transpose(Matrix(), 0, 1), 0), F(Shape{2}, {6, 15}));
  ExpectTensor(Sum(I(Shape{2, 2}, {1, 2, 3, 4}), 0), I(Shape{2}, {4, 6}));
  const Tensor cube = F(Shape{2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  ExpectTensor(Sum(cube, 1), F(Shape{2, 2}, {4, 6, 12, 14}));
}

TEST(ReduceOpsTest, OverNothing) {
  ExpectTensor(Sum(F(Shape{0}, {})), F(Shape{}, {0}));
  ExpectTensor(Sum(F(Shape{0, 2}, {}), 0), F(Shape{2}, {0, 0}));
  ExpectTensor(Sum(F(Shape{2, 0}, {}), 1), F(Shape{2}, {0, 0}));
  ExpectTensor(Sum(F(Shape{2, 0}, {}), 0), F(Shape{0}, {}));
  ExpectTensor(Mean(F(Shape{0}, {})), F(Shape{}, {kNan}));
  ExpectInvalid(Max(F(Shape{0}, {}), 0), {"Max", "f32[0]", "empty"});
}

TEST(ReduceOpsTest, MeansAndMaxima) {
  ExpectTensor(Mean(Matrix()), F(Shape{}, {3.5}));
  ExpectTensor(Mean(Matrix(), 0, true), F(Shape{1, 3}, {2.5, 3.5, 4.5}));
  const Tensor x = F(Shape{2, 3}, {1, 9, 3, 7, 5, kNan});
  ExpectTensor(Max(x, 1), F(Shape{2}, {9, kNan}));
  ExpectTensor(ArgMax(x, 1), I(Shape{2}, {1, 2}));
  ExpectTensor(ArgMax(x, 0, true), I(Shape{1, 3}, {1, 0, 1}));
  ExpectTensor(ArgMax(*Transpose(Matrix(), 0, 1), 0), I(Shape{2}, {2, 2}));
}

TEST(ReduceOpsTest, SumToUndoesBroadcasting) {
  ExpectTensor(SumTo(Matrix(), Shape{3}), F(Shape{3}, {5, 7, 9}));
  ExpectTensor(SumTo(Matrix(), Shape{2, 1}), F(Shape{2, 1}, {6, 15}));
  ExpectTensor(SumTo(Matrix(), Shape{}), F(Shape{}, {21}));
  ExpectTensor(SumTo(Matrix(), Shape{2, 3}), Matrix());
  ExpectInvalid(SumTo(Matrix(), Shape{2}), {"[2]", "f32[2, 3]"});
}

TEST(ReduceOpsTest, Errors) {
  ExpectInvalid(Sum(Matrix(), 2), {"axis 2", "f32[2, 3]"});
  ExpectInvalid(Sum(Matrix(), -3), {"axis -3"});
  ExpectInvalid(Sum(F(Shape{}, {1}), 0), {"axis 0"});
  ExpectInvalid(Mean(I(Shape{1}, {1})), {"Mean", "i64[1]"});
  ExpectInvalid(Sum(Tensor()), {"undefined"});
}

TEST(MatmulOpsTest, ProductsOfViews) {
  const Tensor b = F(Shape{3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor product = F(Shape{2, 2}, {22, 28, 49, 64});
  ExpectTensor(Matmul(Matrix(), b), product);
  ExpectTensor(Matmul(*Transpose(*Transpose(Matrix(), 0, 1)->Contiguous(), 0, 1), b), product);
  ExpectTensor(Matmul(*Transpose(Matrix(), 0, 1), b, true), product);
  ExpectTensor(Matmul(Matrix(), *Transpose(b, 0, 1), false, true), product);
  // Neither axis is dense: the matrix is every second column of a wider one.
  const Tensor wide = F(Shape{2, 6}, {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0});
  ExpectTensor(Matmul(wide.View(Shape{2, 3}, {6, 2}, 0), b), product);
  ExpectTensor(Matmul(*BroadcastTo(F(Shape{1, 3}, {1, 2, 3}), Shape{2, 3}), b),
               F(Shape{2, 2}, {22, 28, 22, 28}));
  ExpectTensor(Matmul(*Slice(Matrix(), 1, 1, 3), *Slice(b, 0, 1, 3)),
               F(Shape{2, 2}, {21, 26, 45, 56}));
}

TEST(MatmulOpsTest, EmptyProducts) {
  ExpectTensor(Matmul(F(Shape{2, 0}, {}), F(Shape{0, 2}, {})), F(Shape{2, 2}, {0, 0, 0, 0}));
  ExpectTensor(Matmul(F(Shape{0, 3}, {}), F(Shape{3, 2}, {1, 2, 3, 4, 5, 6})), F(Shape{0, 2}, {}));
}

TEST(MatmulOpsTest, Linear) {
  const Tensor x = F(Shape{1, 3}, {1, 2, 3});
  ExpectTensor(Linear(x, Matrix(), Tensor()), F(Shape{1, 2}, {14, 32}));
  ExpectTensor(Linear(x, Matrix(), F(Shape{2}, {100, 200})), F(Shape{1, 2}, {114, 232}));
  ExpectTensor(Linear(F(Shape{2, 0}, {}), F(Shape{1, 0}, {}), F(Shape{1}, {5})),
               F(Shape{2, 1}, {5, 5}));
}

TEST(MatmulOpsTest, Errors) {
  ExpectInvalid(Matmul(Matrix(), Matrix()), {"Matmul", "f32[2, 3]"});
  ExpectInvalid(Matmul(Matrix(), F(Shape{3}, {1, 2, 3})), {"two axes", "f32[3]"});
  ExpectInvalid(Matmul(I(Shape{1, 1}, {1}), I(Shape{1, 1}, {1})), {"i64[1, 1]"});
  ExpectInvalid(Linear(Matrix(), F(Shape{2, 2}, {1, 2, 3, 4}), Tensor()), {"2 columns"});
  ExpectInvalid(Linear(Matrix(), Matrix(), F(Shape{3}, {1, 2, 3})), {"bias", "[2]"});
  ExpectInvalid(Linear(Matrix(), Matrix(), Tensor::Of<double>(Shape{2}, {1, 2})), {"f64[2]"});
}

TEST(LossOpsTest, Softmax) {
  ExpectTensor(Softmax(F(Shape{2, 2}, {0, 0, 1000, 0})), F(Shape{2, 2}, {0.5, 0.5, 1, 0}));
  ExpectTensor(LogSoftmax(F(Shape{2}, {0, 0})), F(Shape{2}, {-0.6931472f, -0.6931472f}));
  ExpectTensor(Softmax(F(Shape{2, 0}, {})), F(Shape{2, 0}, {}));
  ExpectInvalid(Softmax(F(Shape{}, {1})), {"Softmax", "f32[]"});
}

TEST(LossOpsTest, CrossEntropy) {
  const Tensor logits = F(Shape{2, 2}, {0, 0, 5, 5});
  ExpectTensor(CrossEntropy(logits, I(Shape{2}, {0, 1})), F(Shape{}, {0.6931472f}));
  ExpectTensor(CrossEntropy(F(Shape{0, 2}, {}), I(Shape{0}, {})), F(Shape{}, {kNan}));
  ExpectInvalid(CrossEntropy(logits, I(Shape{2}, {0, 2})), {"label 2", "row 1", "2 classes"});
  ExpectInvalid(CrossEntropy(logits, I(Shape{2}, {-1, 0})), {"label -1", "row 0"});
  ExpectInvalid(CrossEntropy(logits, I(Shape{3}, {0, 0, 0})), {"f32[2, 2]", "i64[3]"});
  ExpectInvalid(CrossEntropy(logits, F(Shape{2}, {0, 1})), {"f32[2]"});
  ExpectInvalid(CrossEntropy(F(Shape{1, 0}, {}), I(Shape{1}, {0})), {"label 0"});
  ExpectInvalid(CrossEntropyGradient(logits, I(Shape{2}, {0, 1}), F(Shape{2}, {1, 1})), {"f32[2]"});
}

TEST(LossOpsTest, Mse) {
  ExpectTensor(Mse(F(Shape{2}, {1, 2}), F(Shape{2}, {3, 2})), F(Shape{}, {2}));
  ExpectInvalid(Mse(F(Shape{2}, {1, 2}), F(Shape{1}, {3})), {"f32[2]", "f32[1]"});
}

TEST(ShapeOpsTest, Reshape) {
  ExpectTensor(Reshape(Matrix(), {3, 2}), F(Shape{3, 2}, {1, 2, 3, 4, 5, 6}));
  ExpectTensor(Reshape(Matrix(), {-1}), F(Shape{6}, {1, 2, 3, 4, 5, 6}));
  ExpectTensor(Reshape(*Transpose(Matrix(), 0, 1), {6}), F(Shape{6}, {1, 4, 2, 5, 3, 6}));
  ExpectTensor(Reshape(F(Shape{0, 3}, {}), {5, 0}), F(Shape{5, 0}, {}));
  const Tensor x = Matrix();
  EXPECT_EQ(Reshape(x, {6})->storage(), x.storage());
  ExpectInvalid(Reshape(Matrix(), {4}), {"f32[2, 3]", "[4]"});
  ExpectInvalid(Reshape(Matrix(), {4, -1}), {"[4, -1]"});
  ExpectInvalid(Reshape(Matrix(), {-1, -1}), {"negative"});
  ExpectInvalid(Reshape(F(Shape{0}, {}), {0, -1}), {"[0, -1]"});
  ExpectInvalid(Reshape(Matrix(), {int64_t{1} << 40, int64_t{1} << 40}), {});
}

TEST(ShapeOpsTest, TransposeAndSliceAreViews) {
  const Tensor x = Matrix();
  EXPECT_EQ(Transpose(x, 0, -1)->storage(), x.storage());
  ExpectTensor(Slice(x, 0, 1, 2), F(Shape{1, 3}, {4, 5, 6}));
  ExpectTensor(Slice(x, -1, 0, 2), F(Shape{2, 2}, {1, 2, 4, 5}));
  EXPECT_EQ(Slice(x, 0, 1, 2)->raw_data(), x.raw_data() + 12);
  ExpectTensor(Slice(x, 1, 3, 3), F(Shape{2, 0}, {}));
  ExpectInvalid(Slice(x, 1, 2, 4), {"[2, 4)", "f32[2, 3]"});
  ExpectInvalid(Slice(x, 1, 2, 1), {});
  ExpectInvalid(Slice(x, 1, -1, 1), {});
  ExpectInvalid(Slice(x, 2, 0, 1), {"axis 2"});
  ExpectInvalid(Transpose(x, 0, 2), {"axis 2"});
}

TEST(ShapeOpsTest, Concat) {
  ExpectTensor(Concat({Matrix(), F(Shape{1, 3}, {7, 8, 9})}, 0),
               F(Shape{3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  ExpectTensor(Concat({Matrix(), F(Shape{2, 1}, {7, 8})}, -1),
               F(Shape{2, 4}, {1, 2, 3, 7, 4, 5, 6, 8}));
  ExpectTensor(Concat({F(Shape{0}, {}), F(Shape{1}, {1}), F(Shape{0}, {})}, 0), F(Shape{1}, {1}));
  ExpectTensor(Concat({*Tensor::Full(Shape{1}, DType::kBF16, 1)}, 0),
               *Tensor::Full(Shape{1}, DType::kBF16, 1));
  ExpectInvalid(Concat({}, 0), {"no tensors"});
  ExpectInvalid(Concat({Matrix(), F(Shape{2}, {7, 8})}, 0), {"[2, 3]", "[2]"});
  ExpectInvalid(Concat({Matrix(), F(Shape{2, 1}, {7, 8})}, 0), {"number 1"});
  ExpectInvalid(Concat({Matrix(), I(Shape{1, 3}, {7, 8, 9})}, 0), {"dtype"});
  ExpectInvalid(Concat({F(Shape{}, {1})}, 0), {"axis 0"});
}

TEST(ShapeOpsTest, ConcatShapesOverflow) {
  const int64_t half = int64_t{1} << 59;
  EXPECT_FALSE(ConcatShape({Shape{half}, Shape{half}}, 0).ok());
  EXPECT_EQ(*ConcatShape({Shape{half, 0}, Shape{half, 0}}, 1), (Shape{half, 0}));
}

TEST(ShapeOpsTest, BroadcastTo) {
  ExpectTensor(BroadcastTo(F(Shape{2, 1}, {1, 2}), Shape{2, 2, 3}),
               F(Shape{2, 2, 3}, {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2}));
  ExpectInvalid(BroadcastTo(Matrix(), Shape{3}), {"f32[2, 3]", "[3]"});
  ExpectInvalid(BroadcastTo(F(Shape{2}, {1, 2}), Shape{1}), {});
}

TEST(CastTest, BetweenAllDTypes) {
  for (int from = 1; from <= 8; ++from) {
    for (int to = 1; to <= 8; ++to) {
      const Tensor x = *Tensor::Full(Shape{3}, static_cast<DType>(from), 1);
      ExpectTensor(Cast(x, static_cast<DType>(to)),
                   *Tensor::Full(Shape{3}, static_cast<DType>(to), 1));
    }
  }
  ExpectTensor(Cast(F(Shape{4}, {-1.5, 300, kNan, kInf}), DType::kU8),
               Tensor::Of<uint8_t>(Shape{4}, {0, 255, 0, 255}));
  ExpectTensor(Cast(*Transpose(Matrix(), 0, 1), DType::kI64), I(Shape{3, 2}, {1, 4, 2, 5, 3, 6}));
  ExpectInvalid(Cast(Tensor(), DType::kF32), {"undefined"});
}

TEST(CastTest, ForeignBoolsAreRead) {
  const Tensor x = *Tensor::FromBuffer(Shape{2}, DType::kBool, Buffer::FromString("\7\1"));
  ExpectTensor(Cast(x, DType::kI64), I(Shape{2}, {1, 1}));
}

TEST(CompareTest, EqualAndAllClose) {
  EXPECT_TRUE(Equal(F(Shape{1}, {kNan}), F(Shape{1}, {kNan})));
  EXPECT_FALSE(Equal(F(Shape{1}, {0}), F(Shape{1}, {-0.0f})));
  EXPECT_FALSE(Equal(F(Shape{1}, {1}), F(Shape{1, 1}, {1})));
  EXPECT_FALSE(Equal(F(Shape{1}, {1}), Tensor()));
  EXPECT_TRUE(AllClose(F(Shape{2}, {1, kInf}), F(Shape{2}, {1.000001f, kInf})));
  EXPECT_FALSE(AllClose(F(Shape{1}, {1}), F(Shape{1}, {1.1f})));
  EXPECT_FALSE(AllClose(F(Shape{1}, {kInf}), F(Shape{1}, {-kInf})));
  EXPECT_FALSE(AllClose(F(Shape{1}, {kNan}), F(Shape{1}, {1})));
}

TEST(RandomOpsTest, SeedsAndRanges) {
  const Tensor x = *Uniform(Shape{100}, -2, 3, 5);
  EXPECT_TRUE(Equal(x, *Uniform(Shape{10, 10}, -2, 3, 5)->View(Shape{100}, {1}, 0).Contiguous()));
  EXPECT_FALSE(Equal(x, *Uniform(Shape{100}, -2, 3, 6)));
  EXPECT_EQ(Normal(Shape{2}, 0, 1, 5, DType::kF64)->dtype(), DType::kF64);
  ExpectInvalid(Uniform(Shape{1}, 1, 0, 5), {"[1, 0)"});
  ExpectInvalid(Uniform(Shape{1}, kNan, 0, 5), {});
  ExpectInvalid(Uniform(Shape{1}, -1.7e308, 1.7e308, 5), {});
  ExpectInvalid(Uniform(Shape{1}, 0, 1, 5, DType::kI64), {"i64"});
  ExpectInvalid(Normal(Shape{1}, 0, -1, 5), {"-1"});
}

}  // namespace
}  // namespace psd::ops
