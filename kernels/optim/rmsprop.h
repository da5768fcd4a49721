#pragma once

// RMSprop (Hinton's lecture; centered: Graves, "Generating sequences with recurrent neural
// networks", 2013).
//
// Per element, with parameter w, gradient g, mean square q, momentum buffer b and mean gradient r,
// as PyTorch's:
//   g <- -g if maximize;  g <- g + weight_decay * w
//   q <- alpha * q + (1 - alpha) * g^2
//   centered: r <- alpha * r + (1 - alpha) * g and D = sqrt(q - r^2) + eps
//   otherwise D = sqrt(q) + eps
//   momentum > 0: b <- momentum * b + g / D and w <- w - lr * b
//   otherwise w <- w - lr * g / D

#include "kernels/optim/arrays.h"

namespace psd::kernels {

struct RmsPropOptions {
  double lr = 0.01;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
  bool maximize = false;
};

// Takes one step, on the calling thread. State arrays: q, then b unless momentum is 0, then r if
// centered; all start at 0. The instruction set is chosen at run time; an element's result does not
// depend on its position.
void RmsPropStep(const RmsPropOptions& options, const OptimBatch& batch);

}  // namespace psd::kernels
