#include "core/autograd/functions/arithmetic.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/reduce.h"

namespace psd {
namespace {

using Gradients = absl::StatusOr<std::vector<Tensor>>;

// `gradient`, summed to `shape`.
absl::StatusOr<Tensor> ReducedTo(const Shape& shape, absl::StatusOr<Tensor> gradient) {
  if (!gradient.ok()) return gradient;
  return ops::SumTo(*gradient, shape);
}

// Gradients of two arguments, each computed only if wanted.
template <typename OfA, typename OfB>
Gradients Pair(const GradientCall& call, const Shape& a, const Shape& b, OfA of_a, OfB of_b) {
  std::vector<Tensor> gradients(2);
  if (call.Wants(0)) {
    PSD_ASSIGN_OR_RETURN(gradients[0], ReducedTo(a, of_a()));
  }
  if (call.Wants(1)) {
    PSD_ASSIGN_OR_RETURN(gradients[1], ReducedTo(b, of_b()));
  }
  return gradients;
}

Gradients Unchanged(const GradientCall& call) {
  return OneGradient(call.g);
}
Gradients Negated(const GradientCall& call) {
  return OneGradient(ops::Neg(call.g));
}

}  // namespace

Variable Add(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  return Record("Add", {&a, &b}, ops::Add(a.tensor(), b.tensor()), {},
                [a_shape = a.shape(), b_shape = b.shape()](const GradientCall& call) {
                  auto same = [&] { return absl::StatusOr<Tensor>(call.g); };
                  return Pair(call, a_shape, b_shape, same, same);
                });
}

Variable Sub(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  return Record("Sub", {&a, &b}, ops::Sub(a.tensor(), b.tensor()), {},
                [a_shape = a.shape(), b_shape = b.shape()](const GradientCall& call) {
                  return Pair(
                      call, a_shape, b_shape, [&] { return absl::StatusOr<Tensor>(call.g); },
                      [&] { return ops::Neg(call.g); });
                });
}

Variable Mul(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  return Record("Mul", {&a, &b}, ops::Mul(a.tensor(), b.tensor()),
                {KeepIf(b.requires_grad(), a.tensor()), KeepIf(a.requires_grad(), b.tensor())},
                [a_shape = a.shape(), b_shape = b.shape()](const GradientCall& call) {
                  return Pair(
                      call, a_shape, b_shape, [&] { return ops::Mul(call.g, call.saved[1]); },
                      [&] { return ops::Mul(call.g, call.saved[0]); });
                });
}

Variable Div(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  absl::StatusOr<Tensor> y = ops::Div(a.tensor(), b.tensor());
  Tensor quotient = y.ok() && b.requires_grad() ? *y : Tensor();
  return Record("Div", {&a, &b}, std::move(y), {b.tensor(), std::move(quotient)},
                [a_shape = a.shape(), b_shape = b.shape()](const GradientCall& call) {
                  auto of_a = [&] { return ops::Div(call.g, call.saved[0]); };
                  auto of_b = [&]() -> absl::StatusOr<Tensor> {
                    PSD_ASSIGN_OR_RETURN(Tensor scaled, ops::Mul(call.g, call.saved[1]));
                    PSD_ASSIGN_OR_RETURN(Tensor quotient, ops::Div(scaled, call.saved[0]));
                    return ops::Neg(quotient);
                  };
                  return Pair(call, a_shape, b_shape, of_a, of_b);
                });
}

Variable Add(const Variable& a, double b) {
  if (!a.ok()) return a;
  return Record("Add", {&a}, ops::Add(a.tensor(), b), {}, Unchanged);
}

Variable Sub(const Variable& a, double b) {
  if (!a.ok()) return a;
  return Record("Sub", {&a}, ops::Sub(a.tensor(), b), {}, Unchanged);
}

Variable Sub(double a, const Variable& b) {
  if (!b.ok()) return b;
  return Record("Sub", {&b}, ops::Sub(a, b.tensor()), {}, Negated);
}

Variable Mul(const Variable& a, double b) {
  if (!a.ok()) return a;
  return Record("Mul", {&a}, ops::Mul(a.tensor(), b), {},
                [b](const GradientCall& call) { return OneGradient(ops::Mul(call.g, b)); });
}

Variable Div(const Variable& a, double b) {
  if (!a.ok()) return a;
  return Record("Div", {&a}, ops::Div(a.tensor(), b), {},
                [b](const GradientCall& call) { return OneGradient(ops::Div(call.g, b)); });
}

Variable Div(double a, const Variable& b) {
  if (!b.ok()) return b;
  absl::StatusOr<Tensor> y = ops::Div(a, b.tensor());
  Tensor quotient = y.ok() ? *y : Tensor();
  return Record("Div", {&b}, std::move(y), {b.tensor(), std::move(quotient)},
                [](const GradientCall& call) -> Gradients {
                  PSD_ASSIGN_OR_RETURN(Tensor scaled, ops::Mul(call.g, call.saved[1]));
                  PSD_ASSIGN_OR_RETURN(Tensor ratio, ops::Div(scaled, call.saved[0]));
                  return OneGradient(ops::Neg(ratio));
                });
}

Variable Neg(const Variable& x) {
  if (!x.ok()) return x;
  return Record("Neg", {&x}, ops::Neg(x.tensor()), {}, Negated);
}

}  // namespace psd
