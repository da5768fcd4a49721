#pragma once

// Activation functions of single elements and of rows: those of core/tensor/ops/elementwise.h and
// loss.h, with history. Errors travel in the result (variable.h).

#include "core/autograd/variable.h"

namespace psd {

Variable Relu(const Variable& x);
Variable Sigmoid(const Variable& x);
Variable Tanh(const Variable& x);
Variable Exp(const Variable& x);
Variable Log(const Variable& x);
Variable Sqrt(const Variable& x);

// Softmax over the last axis.
Variable Softmax(const Variable& x);
Variable LogSoftmax(const Variable& x);

}  // namespace psd
