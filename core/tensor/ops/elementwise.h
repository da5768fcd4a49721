#pragma once

// Arithmetic and activation functions, element by element. Pure functions; thread-safe.
//
// Two tensors must have the same dtype, and shapes that broadcast by NumPy's rules. A number is
// converted to the tensor's dtype. Add, Sub, Mul and Neg take f32, f64, i32 and i64 (integers wrap
// around); Div and all other functions take f32 and f64. NaN and infinity follow IEEE arithmetic.
// Results are contiguous.
// Errors of all functions: INVALID_ARGUMENT naming shapes, dtypes and the remedy;
// RESOURCE_EXHAUSTED.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

absl::StatusOr<Tensor> Add(const Tensor& a, const Tensor& b);
absl::StatusOr<Tensor> Sub(const Tensor& a, const Tensor& b);
absl::StatusOr<Tensor> Mul(const Tensor& a, const Tensor& b);
absl::StatusOr<Tensor> Div(const Tensor& a, const Tensor& b);

absl::StatusOr<Tensor> Add(const Tensor& a, double b);
absl::StatusOr<Tensor> Sub(const Tensor& a, double b);
absl::StatusOr<Tensor> Sub(double a, const Tensor& b);
absl::StatusOr<Tensor> Mul(const Tensor& a, double b);
absl::StatusOr<Tensor> Div(const Tensor& a, double b);
absl::StatusOr<Tensor> Div(double a, const Tensor& b);

absl::StatusOr<Tensor> Neg(const Tensor& x);
// Returns max(x, 0). The result for NaN is NaN.
absl::StatusOr<Tensor> Relu(const Tensor& x);
absl::StatusOr<Tensor> Sigmoid(const Tensor& x);
absl::StatusOr<Tensor> Tanh(const Tensor& x);
absl::StatusOr<Tensor> Exp(const Tensor& x);
// The natural logarithm.
absl::StatusOr<Tensor> Log(const Tensor& x);
absl::StatusOr<Tensor> Sqrt(const Tensor& x);

// Gradients with respect to a function's argument, from the function's result `y` and the gradient
// `g` of that result. `y` and `g` have the same shape and dtype.
absl::StatusOr<Tensor> ReluGradient(const Tensor& y, const Tensor& g);
absl::StatusOr<Tensor> SigmoidGradient(const Tensor& y, const Tensor& g);
absl::StatusOr<Tensor> TanhGradient(const Tensor& y, const Tensor& g);
absl::StatusOr<Tensor> SqrtGradient(const Tensor& y, const Tensor& g);

// Computes into += x. Both have the same shape and dtype. Requires: `into` is contiguous and nobody
// else has a handle to its elements.
absl::Status AddInPlace(Tensor& into, const Tensor& x);

}  // namespace psd::ops
