#pragma once

// Adamax (Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015, section 7.1).
//
// Per element, with parameter w, gradient g, moment m and infinity norm u, at step t, as PyTorch's:
//   g <- -g if maximize;  g <- g + weight_decay * w
//   m <- beta1 * m + (1 - beta1) * g;  u <- max(beta2 * u, |g| + eps)
//   w <- w - lr / (1 - beta1^t) * m / u

#include "kernels/optim/arrays.h"

namespace psd::kernels {

struct AdamaxOptions {
  double lr = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
};

// Takes one step, on the calling thread. State arrays: m and u, which start at 0. The instruction
// set is chosen at run time; an element's result does not depend on its position.
void AdamaxStep(const AdamaxOptions& options, const OptimBatch& batch);

}  // namespace psd::kernels
