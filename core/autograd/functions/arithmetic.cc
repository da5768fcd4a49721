#include "core/autograd/functions/arithmetic.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/autograd/functions/function_node.h"
#include "core/base/status.h"
#include "core/tensor/ops/elementwise.h"
#include "core/tensor/ops/reduce.h"

namespace psd {
namespace {

// Sums a gradient of the result to the shape of an argument that may have been broadcast.
class SumBack {
 public:
  SumBack(const Variable& argument, const absl::StatusOr<Tensor>& result)
      : shape_(result.ok() && result->shape() != argument.shape()
                   ? std::make_unique<const Shape>(argument.shape())
                   : nullptr) {}
  // Sums `gradient`, which has the result's shape, to the shape of argument `i`, and gives it as
  // that argument's gradient.
  absl::Status Give(const GradientCall& call, size_t i, absl::StatusOr<Tensor>&& gradient) const {
    if (shape_ == nullptr || !gradient.ok()) return call.Give(i, std::move(gradient));
    return call.Give(i, ops::SumTo(*gradient, *shape_));
  }

 private:
  std::unique_ptr<const Shape> shape_;  // the argument's shape; null if it is that of the result
};

// Gives the gradients of two arguments. Each is computed only if it is wanted.
template <typename OfA, typename OfB>
absl::Status Pair(const GradientCall& call, const SumBack& a, const SumBack& b, OfA of_a,
                  OfB of_b) {
  if (call.Wants(0)) PSD_RETURN_IF_ERROR(a.Give(call, 0, of_a()));
  if (call.Wants(1)) PSD_RETURN_IF_ERROR(b.Give(call, 1, of_b()));
  return absl::OkStatus();
}

absl::Status Unchanged(const GradientCall& call) {
  return call.Give(0, call.g);
}
absl::Status Negated(const GradientCall& call) {
  return call.Give(0, ops::Neg(call.g));
}

// Returns x * x as an operator on one argument. Its gradient is the product g * x, added to itself.
// As an operator on two arguments it would need that product twice.
Variable Square(const Variable& x) {
  return Record("Mul", {&x}, ops::Mul(x.tensor(), x.tensor()), Save(x.tensor()),
                [](const GradientCall& call) -> absl::Status {
                  PSD_ASSIGN_OR_RETURN(Tensor gradient, ops::Mul(call.g, call.saved[0]));
                  PSD_RETURN_IF_ERROR(ops::AddInPlace(gradient, gradient));
                  return call.Give(0, std::move(gradient));
                });
}

}  // namespace

Variable Add(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  absl::StatusOr<Tensor> y = ops::Add(a.tensor(), b.tensor());
  auto gradient = [to_a = SumBack(a, y), to_b = SumBack(b, y)](const GradientCall& call) {
    auto same = [&] { return absl::StatusOr<Tensor>(call.g); };
    return Pair(call, to_a, to_b, same, same);
  };
  return Record("Add", {&a, &b}, std::move(y), Save(), std::move(gradient));
}

Variable Sub(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  absl::StatusOr<Tensor> y = ops::Sub(a.tensor(), b.tensor());
  auto gradient = [to_a = SumBack(a, y), to_b = SumBack(b, y)](const GradientCall& call) {
    return Pair(
        call, to_a, to_b, [&] { return absl::StatusOr<Tensor>(call.g); },
        [&] { return ops::Neg(call.g); });
  };
  return Record("Sub", {&a, &b}, std::move(y), Save(), std::move(gradient));
}

Variable Mul(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  if (&a == &b) return Square(a);
  absl::StatusOr<Tensor> y = ops::Mul(a.tensor(), b.tensor());
  auto gradient = [to_a = SumBack(a, y), to_b = SumBack(b, y)](const GradientCall& call) {
    return Pair(
        call, to_a, to_b, [&] { return ops::Mul(call.g, call.saved[1]); },
        [&] { return ops::Mul(call.g, call.saved[0]); });
  };
  return Record("Mul", {&a, &b}, std::move(y),
                Save(KeepIf(b.requires_grad(), a.tensor()), KeepIf(a.requires_grad(), b.tensor())),
                std::move(gradient));
}

Variable Div(const Variable& a, const Variable& b) {
  if (const Variable* invalid = FirstInvalid({&a, &b})) return *invalid;
  absl::StatusOr<Tensor> y = ops::Div(a.tensor(), b.tensor());
  auto gradient = [to_a = SumBack(a, y), to_b = SumBack(b, y)](const GradientCall& call) {
    auto of_a = [&] { return ops::Div(call.g, call.saved[0]); };
    auto of_b = [&]() -> absl::StatusOr<Tensor> {
      PSD_ASSIGN_OR_RETURN(Tensor scaled, ops::Mul(call.g, call.saved[1]));
      PSD_ASSIGN_OR_RETURN(Tensor quotient, ops::Div(scaled, call.saved[0]));
      return ops::Neg(quotient);
    };
    return Pair(call, to_a, to_b, of_a, of_b);
  };
  Tensor quotient = y.ok() && b.requires_grad() ? *y : Tensor();
  return Record("Div", {&a, &b}, std::move(y), Save(b.tensor(), std::move(quotient)),
                std::move(gradient));
}

Variable Add(const Variable& a, double b) {
  if (!a.ok()) return a;
  return Record("Add", {&a}, ops::Add(a.tensor(), b), Save(), Unchanged);
}

Variable Sub(const Variable& a, double b) {
  if (!a.ok()) return a;
  return Record("Sub", {&a}, ops::Sub(a.tensor(), b), Save(), Unchanged);
}

Variable Sub(double a, const Variable& b) {
  if (!b.ok()) return b;
  return Record("Sub", {&b}, ops::Sub(a, b.tensor()), Save(), Negated);
}

Variable Mul(const Variable& a, double b) {
  if (!a.ok()) return a;
  return Record("Mul", {&a}, ops::Mul(a.tensor(), b), Save(),
                [b](const GradientCall& call) { return call.Give(0, ops::Mul(call.g, b)); });
}

Variable Div(const Variable& a, double b) {
  if (!a.ok()) return a;
  return Record("Div", {&a}, ops::Div(a.tensor(), b), Save(),
                [b](const GradientCall& call) { return call.Give(0, ops::Div(call.g, b)); });
}

Variable Div(double a, const Variable& b) {
  if (!b.ok()) return b;
  absl::StatusOr<Tensor> y = ops::Div(a, b.tensor());
  Tensor quotient = y.ok() ? *y : Tensor();
  return Record("Div", {&b}, std::move(y), Save(b.tensor(), std::move(quotient)),
                [](const GradientCall& call) -> absl::Status {
                  PSD_ASSIGN_OR_RETURN(Tensor scaled, ops::Mul(call.g, call.saved[1]));
                  PSD_ASSIGN_OR_RETURN(Tensor ratio, ops::Div(scaled, call.saved[0]));
                  return call.Give(0, ops::Neg(ratio));
                });
}

Variable Neg(const Variable& x) {
  if (!x.ok()) return x;
  return Record("Neg", {&x}, ops::Neg(x.tensor()), Save(), Negated);
}

}  // namespace psd
