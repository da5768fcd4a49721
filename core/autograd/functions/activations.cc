#include "core/autograd/functions/activations.h"

#include <utility>

#include "absl/status/statusor.h"
#include "core/autograd/functions/function_node.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/loss.h"

namespace psd {
namespace {

using Forward = absl::StatusOr<Tensor> (*)(const Tensor& x);
using Gradient = absl::StatusOr<Tensor> (*)(const Tensor& y, const Tensor& g);

// Records a function whose gradient is computed from its result alone.
Variable OfResult(absl::string_view name, const Variable& x, Forward forward, Gradient gradient) {
  if (!x.ok()) return x;
  absl::StatusOr<Tensor> y = forward(x.tensor());
  if (!y.ok()) return Variable::Invalid(y.status());
  Tensor saved = *y;
  return Record(name, {&x}, std::move(y), Save(std::move(saved)),
                [gradient](const GradientCall& call) {
                  return call.Give(0, gradient(call.saved[0], call.g));
                });
}

absl::StatusOr<Tensor> ExpGradient(const Tensor& y, const Tensor& g) {
  return ops::Mul(y, g);
}

}  // namespace

Variable Relu(const Variable& x) {
  return OfResult("Relu", x, ops::Relu, ops::ReluGradient);
}
Variable Sigmoid(const Variable& x) {
  return OfResult("Sigmoid", x, ops::Sigmoid, ops::SigmoidGradient);
}
Variable Tanh(const Variable& x) {
  return OfResult("Tanh", x, ops::Tanh, ops::TanhGradient);
}
Variable Exp(const Variable& x) {
  return OfResult("Exp", x, ops::Exp, ExpGradient);
}
Variable Sqrt(const Variable& x) {
  return OfResult("Sqrt", x, ops::Sqrt, ops::SqrtGradient);
}

Variable Log(const Variable& x) {
  if (!x.ok()) return x;
  return Record("Log", {&x}, ops::Log(x.tensor()), Save(x.tensor()), [](const GradientCall& call) {
    return call.Give(0, ops::Div(call.g, call.saved[0]));
  });
}

Variable Softmax(const Variable& x) {
  return OfResult("Softmax", x, ops::Softmax, ops::SoftmaxGradient);
}
Variable LogSoftmax(const Variable& x) {
  return OfResult("LogSoftmax", x, ops::LogSoftmax, ops::LogSoftmaxGradient);
}

}  // namespace psd
