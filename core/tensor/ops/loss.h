#pragma once

// Softmax, and losses over it. Pure functions on f32 and f64; thread-safe.
//
// Softmax is taken over each row along the last axis: softmax(x)_i = exp(x_i - m) / s and
// log-softmax(x)_i = x_i - m - log(s), with m = max x and s = sum over j of exp(x_j - m).
// Errors of all functions: INVALID_ARGUMENT naming the tensors; RESOURCE_EXHAUSTED.

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"

namespace psd::ops {

// Requires: x has at least one axis; otherwise INVALID_ARGUMENT.
absl::StatusOr<Tensor> Softmax(const Tensor& x);
absl::StatusOr<Tensor> LogSoftmax(const Tensor& x);

// Gradients with respect to x, from the result `y` and its gradient `g`, of the same shape.
absl::StatusOr<Tensor> SoftmaxGradient(const Tensor& y, const Tensor& g);
absl::StatusOr<Tensor> LogSoftmaxGradient(const Tensor& y, const Tensor& g);

// Returns the mean over all rows of -log_softmax(logits)[row, labels[row]] as a scalar; NaN if
// there are no rows. `logits` is [B, C]; `labels` is i64[B], each in [0, C). If `log_probabilities`
// is not null, it receives the log-softmax, [B, C].
absl::StatusOr<Tensor> CrossEntropy(const Tensor& logits, const Tensor& labels,
                                    Tensor* log_probabilities = nullptr);

// Returns the gradient of CrossEntropy with respect to its logits, [B, C], from the
// log-probabilities that it returned, its labels and the gradient `g` of its result, which is one
// element.
absl::StatusOr<Tensor> CrossEntropyGradient(const Tensor& log_probabilities, const Tensor& labels,
                                            const Tensor& g);

// Returns the mean of (a - b)^2 as a scalar; NaN if there are no elements. Both have the same
// shape.
absl::StatusOr<Tensor> Mse(const Tensor& a, const Tensor& b);

}  // namespace psd::ops
