#pragma once

// Adagrad (Duchi, Hazan, Singer, "Adaptive subgradient methods", JMLR 2011).
//
// Per element, with parameter w, gradient g and sum of squares s, at step t, as PyTorch's:
//   g <- -g if maximize;  g <- g + weight_decay * w
//   s <- s + g^2
//   w <- w - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)

#include "kernels/optim/arrays.h"

namespace psd::kernels {

struct AdagradOptions {
  double lr = 0.01;
  double lr_decay = 0;
  double weight_decay = 0;
  double eps = 1e-10;
  bool maximize = false;
};

// Takes one step, on the calling thread. State array: s, which starts at any value of at least 0.
// The instruction set is chosen at run time; an element's result does not depend on its position.
void AdagradStep(const AdagradOptions& options, const OptimBatch& batch);

}  // namespace psd::kernels
