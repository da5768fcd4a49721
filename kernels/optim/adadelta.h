#pragma once

// Adadelta (Zeiler, "ADADELTA: an adaptive learning rate method", 2012).
//
// Per element, with parameter w, gradient g and mean squares q of gradients and a of updates, as
// PyTorch's:
//   g <- -g if maximize;  g <- g + weight_decay * w
//   q <- rho * q + (1 - rho) * g^2;  d = sqrt(a + eps) / sqrt(q + eps) * g
//   a <- rho * a + (1 - rho) * d^2
//   w <- w - lr * d

#include "kernels/optim/arrays.h"

namespace psd::kernels {

struct AdadeltaOptions {
  double lr = 1;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
  bool maximize = false;
};

// Takes one step, on the calling thread. State arrays: q and a, which start at 0. The instruction
// set is chosen at run time; an element's result does not depend on its position.
void AdadeltaStep(const AdadeltaOptions& options, const OptimBatch& batch);

}  // namespace psd::kernels
