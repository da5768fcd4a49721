#pragma once

// Arithmetic and activation functions, element by element. Pure functions; thread-safe.
//
// Two tensors must have one dtype and shapes that broadcast by NumPy's rules. A number takes the
// tensor's dtype. Arithmetic takes f32, f64, i32, i64 (overflow of integers wraps around); Div and
// all functions with a curve take f32 and f64. NaN and infinity follow IEEE arithmetic. Results are
// contiguous.
// Errors of all: INVALID_ARGUMENT naming shapes, dtypes and the remedy; RESOURCE_EXHAUSTED.

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
// max(x, 0), NaN for NaN.
absl::StatusOr<Tensor> Relu(const Tensor& x);
absl::StatusOr<Tensor> Sigmoid(const Tensor& x);
absl::StatusOr<Tensor> Tanh(const Tensor& x);
absl::StatusOr<Tensor> Exp(const Tensor& x);
// The natural logarithm.
absl::StatusOr<Tensor> Log(const Tensor& x);
absl::StatusOr<Tensor> Sqrt(const Tensor& x);

// The gradient of the argument from the result `y` and its gradient `g`, of one shape and dtype.
absl::StatusOr<Tensor> ReluGradient(const Tensor& y, const Tensor& g);
absl::StatusOr<Tensor> SigmoidGradient(const Tensor& y, const Tensor& g);
absl::StatusOr<Tensor> TanhGradient(const Tensor& y, const Tensor& g);
absl::StatusOr<Tensor> SqrtGradient(const Tensor& y, const Tensor& g);

// into += x, of one shape and dtype.
// Requires: nobody else has a handle to the elements of `into`; it is contiguous.
absl::Status AddInPlace(Tensor& into, const Tensor& x);

}  // namespace psd::ops
