#pragma once

// Losses: core/tensor/ops/loss.h with history. Results are scalars. Errors travel in the result
// (variable.h).

#include "core/autograd/variable.h"

namespace psd {

// Returns the mean over all rows of -log_softmax(logits)[row, labels[row]], where logits is [B, C]
// and labels is i64[B].
Variable CrossEntropy(const Variable& logits, const Variable& labels);

// Returns the mean of (a - b)^2. Both have the same shape.
Variable Mse(const Variable& a, const Variable& b);

}  // namespace psd
