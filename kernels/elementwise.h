#pragma once

// Arithmetic and activation functions over dense runs of numbers.
//
// Thread-safe: no state. NaN and infinity are treated as IEEE arithmetic says. `out` may be one of
// the inputs, but must not overlap one otherwise. No alignment is required.

#include <cstddef>
#include <cstdint>

namespace psd::kernels {

enum class BinaryOp { kAdd, kSub, kMul, kDiv };

// Computes out[i] = a[i * a_step] op b[i * b_step]. A step is 1, or 0 if one number is used for all
// i. Requires: the steps are not both 0, unless count is at most 1.
void Binary(BinaryOp op, const float* a, size_t a_step, const float* b, size_t b_step, float* out,
            size_t count);
void Binary(BinaryOp op, const double* a, size_t a_step, const double* b, size_t b_step,
            double* out, size_t count);
// Overflow wraps around. Requires: op is not kDiv.
void Binary(BinaryOp op, const int32_t* a, size_t a_step, const int32_t* b, size_t b_step,
            int32_t* out, size_t count);
void Binary(BinaryOp op, const int64_t* a, size_t a_step, const int64_t* b, size_t b_step,
            int64_t* out, size_t count);

enum class UnaryOp {
  kNeg,
  kRelu,     // x < 0 ? 0 : x
  kSigmoid,  // 1 / (1 + exp(-x))
  kTanh,
  kExp,
  kLog,  // NaN for negative numbers, -infinity for zero
  kSqrt,
};

// Computes out[i] = op(x[i]).
void Unary(UnaryOp op, const float* x, float* out, size_t count);
void Unary(UnaryOp op, const double* x, double* out, size_t count);
// Computes out[i] = -x[i]. The smallest number of the type has no negative and stays as it is.
void Negate(const int32_t* x, int32_t* out, size_t count);
void Negate(const int64_t* x, int64_t* out, size_t count);

// Gradients of functions, computed from the function's result y and its gradient g.
enum class UnaryGradientOp {
  kRelu,     // y <= 0 ? 0 : g
  kSigmoid,  // g * y * (1 - y)
  kTanh,     // g * (1 - y * y)
  kSqrt,     // g / (2 * y)
};

// Computes out[i], the gradient with respect to the function's argument, for result y[i] with
// gradient g[i].
void UnaryGradient(UnaryGradientOp op, const float* y, const float* g, float* out, size_t count);
void UnaryGradient(UnaryGradientOp op, const double* y, const double* g, double* out, size_t count);

}  // namespace psd::kernels
