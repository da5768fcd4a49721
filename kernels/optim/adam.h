#pragma once

// Adam (Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015) and AdamW (Loshchilov,
// Hutter, "Decoupled weight decay regularization", ICLR 2019).
//
// Per element, with parameter w, gradient g, moments m and v, at step t, as PyTorch's:
//   g <- -g if maximize
//   Adam:   g <- g + weight_decay * w
//   AdamW:  w <- w * (1 - lr * weight_decay)
//   m <- beta1 * m + (1 - beta1) * g;  v <- beta2 * v + (1 - beta2) * g^2
//   amsgrad: x <- max(x, v) and v' = x, otherwise v' = v
//   w <- w - lr / (1 - beta1^t) * m / (sqrt(v') / sqrt(1 - beta2^t) + eps)
// The bias corrections are computed in double, once per batch.

#include "kernels/optim/arrays.h"

namespace psd::kernels {

struct AdamOptions {
  double lr = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_decay = false;  // AdamW
  bool amsgrad = false;
  bool maximize = false;
};

// Takes one step, on the calling thread. State arrays: m, v and, with amsgrad, x; all start at 0.
// The instruction set is chosen at run time; an element's result does not depend on its position.
void AdamStep(const AdamOptions& options, const OptimBatch& batch);

}  // namespace psd::kernels
