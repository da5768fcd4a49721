#include "tests/core/autograd/gradient_check.h"

#include <cmath>
#include <utility>

#include "absl/status/statusor.h"
#include "core/autograd/functions/functions.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/random.h"
#include "core/tensor/ops/reduce.h"
#include "core/tensor/ops/shape_ops.h"
#include "gtest/gtest.h"

namespace psd::testing {
namespace {

constexpr double kStep = 1e-6;

std::vector<Variable> Constants(const std::vector<Tensor>& tensors) {
  return std::vector<Variable>(tensors.begin(), tensors.end());
}

// Returns sum(weights * y).
double Weighted(const Variable& y, const Tensor& weights) {
  EXPECT_TRUE(y.ok()) << y.status();
  absl::StatusOr<Tensor> product = ops::Mul(y.tensor(), weights);
  EXPECT_TRUE(product.ok()) << product.status();
  return *ops::Sum(*product)->data<double>();
}

// Returns the numeric gradient of element `at` of inputs[which].
double Difference(const Function& function, std::vector<Tensor> inputs, size_t which, int64_t at,
                  const Tensor& weights) {
  const Tensor original = inputs[which];
  double values[2];
  for (int side = 0; side < 2; ++side) {
    Tensor moved = *original.Clone();
    moved.mutable_data<double>()[at] += side == 0 ? kStep : -kStep;
    inputs[which] = moved;
    values[side] = Weighted(function(Constants(inputs)), weights);
  }
  return (values[0] - values[1]) / (2 * kStep);
}

// Returns a view with the same numbers, which lie in memory column by column and with gaps.
Tensor Strided(const Tensor& x) {
  if (x.rank() == 0) {
    Tensor padded = Tensor::Of<double>(Shape{3}, {99, *x.data<double>(), 99});
    return padded.View(Shape{}, {}, 1);
  }
  Tensor turned = *ops::Transpose(x, 0, x.rank() - 1);
  Tensor padded = *ops::Concat({turned, turned}, x.rank() - 1);
  Tensor back = *ops::Slice(padded, x.rank() - 1, 0, turned.shape()[x.rank() - 1]);
  return *ops::Transpose(back, 0, x.rank() - 1);
}

void CheckWith(const Function& function, const std::vector<Tensor>& inputs, bool strided) {
  std::vector<Variable> leaves;
  for (const Tensor& input : inputs) {
    const bool floating = input.dtype() == DType::kF64;
    leaves.emplace_back(strided && floating ? Strided(input) : input, floating);
  }
  Variable y = function(leaves);
  ASSERT_TRUE(y.ok()) << y.status();
  const Tensor weights = Numbers(y.shape(), 77);
  FakeSink sink;
  absl::Status status = Backward({Sum(y * Variable(weights))}, sink);
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dtype() != DType::kF64) continue;
    const Tensor gradient = sink.Of(leaves[i]);
    ASSERT_TRUE(gradient.defined()) << "input " << i;
    ASSERT_EQ(gradient.shape(), inputs[i].shape());
    for (int64_t at = 0; at < inputs[i].NumElements(); ++at) {
      const double expected = Difference(function, inputs, i, at, weights);
      EXPECT_NEAR(gradient.data<double>()[at], expected, 1e-7 + 1e-6 * std::fabs(expected))
          << "input " << i << " " << inputs[i].ToString() << " element " << at
          << (strided ? " strided" : "");
    }
  }
}

}  // namespace

absl::Status FakeSink::Accumulate(const LeafInfo& leaf, Tensor gradient) {
  MutexLock lock(mutex_);
  ++calls_;
  gradients_[leaf.key] = std::move(gradient);
  return absl::OkStatus();
}

Tensor FakeSink::Of(const Variable& leaf) const {
  MutexLock lock(mutex_);
  auto found = gradients_.find(leaf.key());
  return found == gradients_.end() ? Tensor() : found->second;
}

int FakeSink::calls() const {
  MutexLock lock(mutex_);
  return calls_;
}

Tensor Numbers(const Shape& shape, uint64_t seed) {
  Tensor x = *ops::Uniform(shape, -1.95, 1.95, seed, DType::kF64);
  double* data = x.mutable_data<double>();
  for (int64_t i = 0; i < x.NumElements(); ++i) data[i] += data[i] < 0 ? -0.05 : 0.05;
  return x;
}

Tensor PositiveNumbers(const Shape& shape, uint64_t seed) {
  return *ops::Uniform(shape, 0.5, 2.5, seed, DType::kF64);
}

void CheckGradients(const Function& function, const std::vector<Tensor>& inputs) {
  CheckWith(function, inputs, false);
  CheckWith(function, inputs, true);
}

}  // namespace psd::testing
