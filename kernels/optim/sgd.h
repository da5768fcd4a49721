#pragma once

// Stochastic gradient descent.
//
// Per element, with parameter w, gradient g and momentum buffer b, at step t, as PyTorch's SGD:
//   g <- -g if maximize;  g <- g + weight_decay * w
//   momentum 0:  d = g
//   otherwise:   b <- g at t = 1, momentum * b + (1 - dampening) * g later;
//                d = g + momentum * b if nesterov, else b
//   w <- w - lr * d

#include "kernels/optim/arrays.h"

namespace psd::kernels {

struct SgdOptions {
  double lr = 0.01;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

// Takes one step, on the calling thread. State array, unless momentum is 0: b, which starts at 0.
// The instruction set is chosen at run time; an element's result does not depend on its position.
void SgdStep(const SgdOptions& options, const OptimBatch& batch);

}  // namespace psd::kernels
