#pragma once

// Softmax, and losses over it. Pure functions on f32 and f64; thread-safe.
//
// Each row along the last axis is taken by itself: softmax(x)_i = exp(x_i - m) / s and
// log-softmax(x)_i = x_i - m - log(s), with m = max x and s = sum over j of exp(x_j - m).
// Errors of all: INVALID_ARGUMENT naming the tensors; RESOURCE_EXHAUSTED.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// At least one axis.
absl::StatusOr<Tensor> Softmax(const Tensor& x);
absl::StatusOr<Tensor> LogSoftmax(const Tensor& x);

// The gradient of the argument from the result `y` and its gradient `g`.
absl::StatusOr<Tensor> SoftmaxGradient(const Tensor& y, const Tensor& g);
absl::StatusOr<Tensor> LogSoftmaxGradient(const Tensor& y, const Tensor& g);

// The mean over rows of -log_softmax(logits[B, C])[row, labels[row]]: a scalar, NaN for no rows.
// Labels are i64[B], each in [0, C). `log_probabilities`, if not null, receives the log-softmax.
absl::StatusOr<Tensor> CrossEntropy(const Tensor& logits, const Tensor& labels,
                                    Tensor* log_probabilities = nullptr);

// The gradient of `logits` from those log-probabilities and the scalar result's gradient `g`.
// Requires: labels that CrossEntropy accepted.
absl::StatusOr<Tensor> CrossEntropyGradient(const Tensor& log_probabilities, const Tensor& labels,
                                            const Tensor& g);

// The mean of (a - b)^2, of one shape: a scalar, NaN for no elements.
absl::StatusOr<Tensor> Mse(const Tensor& a, const Tensor& b);

}  // namespace psd::ops
